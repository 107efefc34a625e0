//! The values of F32 tensors: norms, constants of the delta nets, convolutions, routers. Owns: how
//! they are drawn. Does not own: which tensor gets which (`recipe`), pick shares (`routing`).
//! Memory: 64 Ki values or one row of a router at a time.
//!
//! Invariants: 1. as many values as asked for. 2. They depend on the model's fields and the tensor's
//! name alone.
//! Cost: about 2 ns a value.

use super::recipe::Zones;
use super::{SyntheticModel, routing};
use crate::Error;
use crate::random::Random;

/// Values are drawn in parts of this many.
const VALUES_AT_ONCE: usize = 1 << 16;

/// Small F32 tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Values {
    Same(f32),
    /// Normal around the first, with the second as deviation.
    Normal(f64, f64),
    /// Uniform in -8.05..-0.05: decay rates.
    Decay,
    /// Convolutions that pass the current token on.
    LastTap(usize),
    /// The router of a layer.
    Router(usize),
}

impl Values {
    /// Hands the `n` values of the tensor `name` to `sink`, in order and in parts.
    ///
    /// # Errors
    /// Those of `sink`.
    pub(crate) fn draw(
        self,
        model: &SyntheticModel,
        name: &str,
        n: usize,
        sink: &mut dyn FnMut(&[f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut random = Random::for_tensor(model.seed, name);
        let mut value: Box<dyn FnMut(usize) -> f32> = match self {
            Self::Router(layer) => return router(model, layer, &mut random, sink),
            Self::Same(value) => Box::new(move |_| value),
            Self::Normal(mean, deviation) => {
                let (mean, deviation) = (mean as f32, deviation as f32);
                Box::new(move |_| mean + deviation * random.normal())
            }
            Self::Decay => Box::new(move |_| -0.05 - 8.0 * random.unit()),
            Self::LastTap(kernel) => {
                Box::new(move |i| f32::from(u8::from((i + 1).is_multiple_of(kernel))))
            }
        };
        let mut part = Vec::with_capacity(VALUES_AT_ONCE.min(n));
        let mut start = 0;
        while start < n {
            let end = n.min(start + VALUES_AT_ONCE);
            part.clear();
            part.extend((start..end).map(&mut value));
            sink(&part)?;
            start = end;
        }
        Ok(())
    }
}

/// `[n_expert, n_embd]`: the bias of each expert's rank, then noise of length 1 over the zones.
fn router(
    model: &SyntheticModel,
    layer: usize,
    random: &mut Random,
    sink: &mut dyn FnMut(&[f32]) -> Result<(), Error>,
) -> Result<(), Error> {
    let zones = Zones::of(model.n_embd);
    let biases = routing::biases(model.n_expert, model.n_expert_used, model.skew);
    let order = routing::ranking(model.seed, layer, model.n_expert);
    let remembered = routing::memory(model.correlation);
    let mut row = vec![0.0; model.n_embd];
    for expert in 0..model.n_expert {
        let rank = order.iter().position(|e| *e == expert).unwrap_or(0);
        let (bias, noise) = row.split_at_mut(zones.bias);
        bias.fill((biases[rank] / zones.bias as f64) as f32);
        if model.correlation > 0.0 {
            let (memory, token) = noise.split_at_mut(zones.memory);
            direction(memory, remembered.sqrt(), random);
            direction(token, (1.0 - remembered).sqrt(), random);
        } else {
            direction(noise, 1.0, random);
        }
        sink(&row)?;
    }
    Ok(())
}

/// A random vector of this length.
fn direction(out: &mut [f32], length: f64, random: &mut Random) {
    out.fill_with(|| random.normal());
    let square: f64 = out.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    let scale = (length / square.max(f64::MIN_POSITIVE).sqrt()) as f32;
    out.iter_mut().for_each(|v| *v *= scale);
}
