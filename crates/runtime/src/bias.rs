//! Cache-aware routing in a running model: a token's choice of experts, tilted toward what is
//! resident.
//!
//! Owns where and when the bias applies, and what it cost; the method is `thalweg_cache::Moce`.
//! Lossy (class X2): never active unless it was asked for. Prompt tokens keep the model's own
//! routing unless that was asked for too, so that the state after a prompt is exact.

use thalweg_backend::Routing;
use thalweg_cache::{Bias, Moce, RangeMean, ResidentView, Router, Weights};
use thalweg_model::ModelSpec;

use crate::chunk::Phase;
use crate::{Error, Result};

/// An active bias and its account.
#[derive(Debug)]
pub(crate) struct RoutingBias {
    moce: Moce,
    /// By layer.
    routers: Vec<Router>,
    pub(crate) choices: u64,
    pub(crate) picks: u64,
    pub(crate) swapped: u64,
    pub(crate) kl_nats: f64,
}

impl RoutingBias {
    /// Checks the settings; `None` where the bias is off.
    ///
    /// # Errors
    /// [`Error::Cache`] for settings out of range or a router that they cannot serve;
    /// [`Error::Option`] for a view of residency that the engine does not have.
    pub(crate) fn new(moce: Moce, spec: &ModelSpec) -> Result<Option<Self>> {
        moce.check()?;
        if moce.bias == Bias::Off {
            return Ok(None);
        }
        if moce.resident != ResidentView::ArenaOnly {
            let expected = "ArenaOnly: nothing is read ahead".to_owned();
            let found = format!("{:?}", moce.resident);
            return Err(Error::Option {
                option: "moce.resident",
                expected,
                found,
            });
        }
        let narrow = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let routers = spec
            .experts
            .iter()
            .map(|e| Router::new(narrow(e.n_expert), narrow(e.k)));
        let routers = routers.collect::<Result<_, _>>()?;
        Ok(Some(Self {
            moce,
            routers,
            choices: 0,
            picks: 0,
            swapped: 0,
            kl_nats: 0.0,
        }))
    }

    /// Whether tokens of this phase are biased.
    pub(crate) fn applies(&self, phase: Phase) -> bool {
        phase == Phase::Decode || self.moce.prefill
    }

    /// Chooses again for every token of the chunk, by what is resident now.
    pub(crate) fn reroute(
        &mut self,
        routing: &mut Routing,
        layer: usize,
        range: &mut RangeMean,
        is_resident: impl Fn(u16) -> bool,
    ) -> Result<()> {
        let Moce {
            protect_top_j,
            weights,
            ..
        } = self.moce;
        for token in 0..routing.n_tokens() {
            let logits = routing.logits(token);
            let beta = self.moce.beta(range, logits);
            let router = &mut self.routers[layer];
            let route = router.route(logits, beta, protect_top_j, weights, &is_resident)?;
            self.choices += 1;
            self.picks += route.unbiased.len() as u64;
            self.swapped += route.unbiased.len() as u64 - u64::from(route.n_agree);
            self.kl_nats += route.routing_kl;
            // The model's own weights stay to the bit where its own choice stays.
            if !route.is_exact() || weights == Weights::Biased {
                routing.set_choice(token, route.experts, route.weights);
            }
        }
        Ok(())
    }
}
