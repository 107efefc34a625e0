//! A trace, joined with what the simulator needs: documents, domains, expert sizes, accesses, rows.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use thalweg_cache::sim::{Document, KeepMap, KeyBytes, Scope, SimConfig, Usage};
use thalweg_cache::{
    Access, AccessLog, ExpertKey, Key, KeySpace, Moce, PolicyKind, Probs, RangeMean, softmax,
};
use thalweg_trace::{Error, Logits, Trace, TraceFile};

/// A recorded run.
pub(crate) struct Input {
    file: TraceFile,
    /// The pairs of layer and expert.
    pub(crate) space: KeySpace,
    /// Experts of a choice.
    pub(crate) k: u16,
    documents: Vec<Document>,
    /// Names of the domains, as far as the trace names them.
    domains: Vec<String>,
    /// Bytes of an expert by layer; zeros if the trace does not tell.
    expert_bytes: Vec<u64>,
}

impl Input {
    /// Reads and checks a trace. `expert_bytes` overrides what the trace says of expert sizes.
    pub(crate) fn open(path: &Path, expert_bytes: Option<u64>) -> Result<Self> {
        let what = || format!("cannot use the trace {}", path.display());
        let file = TraceFile::open(path).map_err(|e| {
            // Some errors name the file, those of its contents do not.
            let is_named = matches!(e, Error::Io { .. } | Error::NotAFile { .. });
            anyhow::Error::new(e).context(match is_named {
                true => "cannot use the trace".to_owned(),
                false => what(),
            })
        })?;
        let trace = file.trace();
        let shape = *trace.shape();
        ensure!(
            trace.n_tokens() > 0,
            "the trace {} is empty",
            path.display()
        );
        let n_layer = u16::try_from(shape.n_layer).with_context(what)?;
        let n_expert = u16::try_from(shape.n_expert).with_context(what)?;
        // By convention JSON; a trace of another program may hold anything.
        let notes: Value = serde_json::from_str(trace.provenance()).unwrap_or_default();
        let list = |key: &str| notes[key].as_array().cloned().unwrap_or_default();
        let domains = list("domains");
        let domains = domains.iter().map(|d| d.as_str().unwrap_or("?").to_owned());
        let noted: Vec<u64> = list("expert_bytes")
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        let expert_bytes = match expert_bytes {
            Some(bytes) => vec![bytes; n_layer.into()],
            None if noted.len() == usize::from(n_layer) => noted,
            None => vec![0; n_layer.into()],
        };
        let documents = trace.documents().map(|d| Document {
            first_token: d.first_token,
            domain: d.domain,
        });
        Ok(Self {
            space: KeySpace::new(n_layer, n_expert),
            k: shape.k,
            documents: documents.collect(),
            domains: domains.collect(),
            expert_bytes,
            file,
        })
    }

    pub(crate) fn trace(&self) -> Trace<'_> {
        self.file.trace()
    }

    pub(crate) fn n_tokens(&self) -> u64 {
        self.trace().n_tokens()
    }

    /// Whether biased routing can be simulated.
    pub(crate) fn has_logits(&self) -> bool {
        self.trace().shape().logits != Logits::None
    }

    /// Bytes of an expert, if the trace tells or the caller did: the mean over the layers.
    pub(crate) fn mean_expert_bytes(&self) -> Option<u64> {
        let sum: u64 = self.expert_bytes.iter().sum();
        let n = self.expert_bytes.len().max(1) as u64;
        (sum > 0).then(|| sum.div_ceil(n))
    }

    /// The model's fingerprint in hexadecimal digits.
    pub(crate) fn fingerprint(&self) -> String {
        let bytes = self.trace().header().fingerprint;
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The name of a domain.
    pub(crate) fn domain(&self, index: usize) -> String {
        let named = self.domains.get(index).cloned();
        named.unwrap_or_else(|| index.to_string())
    }

    /// The greatest number of slots a layer that makes sense.
    pub(crate) fn check_slots(&self, slots: u32) -> Result<()> {
        let (k, n_expert) = (u32::from(self.k), u32::from(self.space.n_expert()));
        ensure!(
            (k..=n_expert).contains(&slots),
            "{slots} slots a layer are not in {k}..={n_expert}: a token uses {k} of {n_expert} \
             experts in each layer"
        );
        Ok(())
    }

    /// A simulation with `slots` slots a layer: each layer's own, or all in one arena.
    pub(crate) fn config(&self, policy: PolicyKind, scope: Scope, slots: u32) -> SimConfig<'_> {
        let capacity = match scope {
            Scope::Global => slots * u32::from(self.space.n_layer()),
            _ => slots,
        };
        let mut config = SimConfig::new(policy, self.space, capacity, self.k.into());
        config.scope = scope;
        config.key_bytes = KeyBytes::PerLayer(&self.expert_bytes);
        config.documents = &self.documents;
        config
    }

    /// The logits of one decision, for the simulator's rows.
    pub(crate) fn row<'a>(&'a self, keep: &'a KeepMap) -> impl FnMut(u64, u16, &mut [f32]) + 'a {
        let trace = self.trace();
        let all = keep.n_kept() == self.space.n_expert();
        move |token, layer, out| {
            let layer_of = trace.token(token).and_then(|t| t.layer(layer.into()));
            match layer_of {
                Some(choice) => {
                    choice.read_logits(out);
                }
                // Not reached: the simulator asks for tokens and layers of the trace.
                None => out.fill(0.0),
            }
            if !all {
                keep.mask(layer, out);
            }
        }
    }

    /// The recorded choices of the first `n_tokens` tokens as accesses, with what `policy` can learn
    /// from.
    pub(crate) fn log(&self, policy: PolicyKind, n_tokens: u64) -> AccessLog {
        let mut log = AccessLog::new();
        let wants_near = policy == PolicyKind::NearPickEma && self.has_logits();
        let wants_probs = policy.uses_probs() && self.has_logits();
        let n_expert = usize::from(self.space.n_expert());
        let (mut row, mut probs) = (vec![0.0f32; n_expert], vec![0.0f32; n_expert]);
        let mut ranked: Vec<u16> = Vec::new();
        for (clock, token) in (0..n_tokens).zip(self.trace().tokens()) {
            for (layer, choice) in (0u16..).zip(token.layers()) {
                let key = |e: u16| self.space.key(ExpertKey::new(layer, e));
                let experts: Vec<u16> = choice.experts().collect();
                let keys: Vec<Key> = experts.iter().filter_map(|&e| key(e)).collect();
                let mut access = Access::new(clock, &keys);
                let near: Vec<Key>;
                if wants_near || wants_probs {
                    choice.read_logits(&mut row);
                }
                if wants_near {
                    ranked.clear();
                    ranked.extend((0..=u16::MAX).take(n_expert));
                    ranked.retain(|e| row[usize::from(*e)].is_finite() && !experts.contains(e));
                    ranked.sort_by(|&a, &b| row[usize::from(b)].total_cmp(&row[usize::from(a)]));
                    let best = ranked.iter().take(experts.len());
                    near = best.filter_map(|&e| key(e)).collect();
                    access = access.with_near(&near);
                }
                if wants_probs {
                    softmax(&row, &mut probs);
                    access.probs = key(0).map(|first| Probs::new(first, &probs));
                }
                log.push(&access);
            }
        }
        log
    }

    /// How often and how strongly each expert was chosen by the first `n_tokens` tokens.
    pub(crate) fn usage(&self, n_tokens: u64) -> Usage {
        let mut usage = Usage::new(self.space);
        for (_, token) in (0..n_tokens).zip(self.trace().tokens()) {
            for (layer, choice) in (0u16..).zip(token.layers()) {
                let mut weights = choice.weights();
                for expert in choice.experts() {
                    let weight = weights.next().unwrap_or_else(|| 1.0 / f32::from(self.k));
                    if let Some(key) = self.space.key(ExpertKey::new(layer, expert)) {
                        usage.add(key, weight);
                    }
                }
            }
        }
        usage
    }

    /// Refuses a bias that the logits kept cannot decide.
    pub(crate) fn check_bias(&self, moce: &Moce, restricted: bool) -> Result<()> {
        let Logits::Top { m } = self.trace().shape().logits else {
            ensure!(
                self.has_logits(),
                "the trace holds no logits: record with --logits f16"
            );
            return Ok(());
        };
        if restricted {
            bail!("a trace of the top {m} logits cannot be routed among fewer experts");
        }
        let mut means = vec![RangeMean::default(); self.space.n_layer().into()];
        let mut row = vec![0.0f32; self.space.n_expert().into()];
        let mut greatest = 0.0f64;
        for token in self.trace().tokens() {
            for (choice, mean) in token.layers().zip(&mut means) {
                choice.read_logits(&mut row);
                greatest = greatest.max(moce.beta(mean, &row));
            }
        }
        // A hair more, for the rounding to f32.
        self.trace().check_beta(greatest as f32 * 1.000_001)?;
        Ok(())
    }
}
