//! The `Policy` contract, its configuration, and the one list of policies.
//!
//! Owns the trait and the enum that the `policies!` list generates. Does not own values, slots
//! or pins: a policy only ranks keys, which is why it has no `get`. Adding a policy is one file in
//! `policies/` and one line in the list below; names, parsing, `build` and the test suites follow.
//! Cost: `build` allocates everything; no policy allocates afterward.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use crate::{Access, AccessLog, Error, Key};

/// Ranks resident keys and names the next one to evict.
///
/// The caller owns residency and follows the order of calls given at [`Access`]. Keys at or above
/// `n_keys` and reports that make no sense (a hit on a key never inserted) are ignored, so that a
/// policy cannot be made to panic. Inserting outside an access (a warm fill, a read ahead of
/// need) is allowed: the key counts as just used.
pub trait Policy: Send {
    /// An access starts; nothing of it has been looked up yet.
    fn begin(&mut self, access: &Access<'_>) {
        let _ = access;
    }

    /// `key` of the current access is resident.
    fn on_hit(&mut self, key: Key);

    /// `key` is about to be loaded; called before the victim for it is asked for, and again if
    /// the load has to be retried.
    fn on_miss(&mut self, key: Key) {
        let _ = key;
    }

    /// Proposes a resident key for which `evictable` is true; `None` if there is none.
    ///
    /// The proposal takes effect with [`on_evict`](Self::on_evict). Without it the key stays.
    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key>;

    /// `key` left its slot: the victim just proposed, or a key dropped for the caller's reasons
    /// (then no trace of it is kept in a history of evictions).
    fn on_evict(&mut self, key: Key);

    /// `key` received a slot.
    fn on_insert(&mut self, key: Key);

    /// The access has been served; recency is written here.
    fn end(&mut self, access: &Access<'_>) {
        let _ = access;
    }

    /// Checks the policy's numbered invariants; for tests, slow.
    ///
    /// # Errors
    /// [`Error::Broken`] names the first invariant found broken.
    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }
}

// `Policy` must stay usable as `Box<dyn Policy>`.
const _: Option<&dyn Policy> = None;

/// What a policy needs to know to be built.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PolicyConfig<'a> {
    /// Keys are `0..n_keys`.
    pub n_keys: u32,
    /// Slots, at least `batch`.
    pub capacity: u32,
    /// Most keys in one access.
    pub batch: u32,
    /// Equal groups into which the keys fall in order, visited in a cycle: the layers of a model.
    pub n_layer: u16,
    /// Seed of the policies that draw lots.
    pub seed: u64,
    /// The accesses to come, for offline policies.
    pub future: Option<&'a AccessLog>,
    /// Constants of the single policies.
    pub tuning: Tuning,
}

impl<'a> PolicyConfig<'a> {
    /// A configuration with one layer, seed 1, no future and the default constants.
    #[must_use]
    pub fn new(n_keys: u32, capacity: u32, batch: u32) -> Self {
        Self {
            n_keys,
            capacity,
            batch,
            n_layer: 1,
            seed: 1,
            future: None,
            tuning: Tuning::default(),
        }
    }

    /// The same with the keys divided into `n_layer` equal groups.
    #[must_use]
    pub const fn with_layers(mut self, n_layer: u16) -> Self {
        self.n_layer = n_layer;
        self
    }

    /// The same with the accesses to come.
    #[must_use]
    pub const fn with_future(mut self, future: &'a AccessLog) -> Self {
        self.future = Some(future);
        self
    }

    /// The same with other constants.
    #[must_use]
    pub const fn with_tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// The same with another seed.
    #[must_use]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Checks the figures against each other.
    ///
    /// # Errors
    /// [`Error::BadShape`] for a zero batch, too many keys, or layers that do not divide them;
    /// [`Error::CapacityBelowBatch`]; [`Error::BadTuning`].
    pub fn check(&self) -> Result<(), Error> {
        let shape = |name, found, min, max| {
            if found < min || found > max {
                return Err(Error::BadShape {
                    name,
                    found,
                    min,
                    max,
                });
            }
            Ok(())
        };
        // The greatest u32 marks "no key" in the linked lists.
        shape("n_keys", self.n_keys, 0, u32::MAX - 1)?;
        shape("batch", self.batch, 1, u32::MAX)?;
        shape("n_layer", u32::from(self.n_layer), 1, u32::from(u16::MAX))?;
        let left_over = self.n_keys % u32::from(self.n_layer);
        shape("n_keys modulo n_layer", left_over, 0, 0)?;
        if self.capacity < self.batch {
            return Err(Error::CapacityBelowBatch {
                capacity: self.capacity,
                batch: self.batch,
            });
        }
        self.tuning.check()
    }
}

/// Constants of the single policies; the defaults are those of their authors or of this crate's
/// documentation.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Tuning {
    /// `ema` and its relatives: weight of the newest access, above 0, at most 0.99. Default 0.05.
    pub ema_rho: f64,
    /// `near_pick_ema`: credit of a near key, where a picked one has 1. Default 0.5.
    pub near_credit: f64,
    /// `s3fifo`: share of the small queue. Default 0.1.
    pub small_share: f64,
    /// `s3fifo`: uses that move a key from the small queue to the main one, 1 to 3. Default 2.
    pub promote_at: u8,
    /// `wtinylfu`: share of the window, which is never below one batch. Default 0.01.
    pub window_share: f64,
    /// `wtinylfu`: share of the main part that is protected. Default 0.8.
    pub protected_share: f64,
    /// `lecar`: learning rate. Default 0.45.
    pub learning_rate: f64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            ema_rho: 0.05,
            near_credit: 0.5,
            small_share: 0.1,
            promote_at: 2,
            window_share: 0.01,
            protected_share: 0.8,
            learning_rate: 0.45,
        }
    }
}

impl Tuning {
    fn check(&self) -> Result<(), Error> {
        for (name, found, min, max) in [
            ("ema_rho", self.ema_rho, f64::MIN_POSITIVE, 0.99),
            ("near_credit", self.near_credit, 0.0, 1.0),
            ("small_share", self.small_share, 0.0, 1.0),
            ("promote_at", f64::from(self.promote_at), 1.0, 3.0),
            ("window_share", self.window_share, 0.0, 1.0),
            ("protected_share", self.protected_share, 0.0, 1.0),
            ("learning_rate", self.learning_rate, 0.0, 100.0),
        ] {
            // Written so that a NaN fails.
            if !(found >= min && found <= max) {
                return Err(Error::BadTuning {
                    name,
                    found,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}

/// One entry a policy: documentation, variant, name in text, type.
macro_rules! policies {
    ($($(#[$doc:meta])* $variant:ident => $name:literal, $ty:ty;)*) => {
        /// The policies of this crate.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum PolicyKind {
            $($(#[$doc])* $variant,)*
        }

        impl PolicyKind {
            /// Every policy, in the order of the list.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in command lines and tables.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Builds the policy.
            ///
            /// # Errors
            /// What [`PolicyConfig::check`] finds, and [`Error::FutureMissing`] for an offline
            /// policy without a log.
            ///
            /// # Cost
            /// Allocates all memory that the policy will ever use, proportional to `n_keys`.
            pub fn build(self, config: &PolicyConfig<'_>) -> Result<Box<dyn Policy>, Error> {
                Ok(match self {
                    $(Self::$variant => Box::new(<$ty>::new(config)?),)*
                })
            }
        }

        /// The suite, once for each entry.
        #[cfg(test)]
        #[allow(non_snake_case)]
        mod suite {
            $(mod $variant {
                crate::policy_tests!(<$ty>::new);
            })*
        }
    };
}

policies! {
    /// Least recently used.
    Lru => "lru", crate::policies::Lru;
    /// First in, first out.
    Fifo => "fifo", crate::policies::Fifo;
    /// Any key, all equally likely.
    Random => "random", crate::policies::Random;
    /// Least frequently used, counts kept for ever.
    Lfu => "lfu", crate::policies::Lfu;
    /// Least exponential moving average of picks.
    Ema => "ema", crate::policies::Ema;
    /// The same with part credit for near picks; needs near keys in the accesses.
    NearPickEma => "near_pick_ema", crate::policies::NearPickEma;
    /// Least moving average of router probability; needs probabilities in the accesses.
    InverseRouterEma => "inverse_router_ema", crate::policies::InverseRouterEma;
    /// Oldest second-last use (LRU-K with K = 2).
    Lru2 => "lru2", crate::policies::Lru2;
    /// Queue with a visited bit and a hand.
    Sieve => "sieve", crate::policies::Sieve;
    /// Small, main and ghost queue.
    S3Fifo => "s3fifo", crate::policies::S3Fifo;
    /// Recency window and frequency-guarded main part.
    WTinyLfu => "wtinylfu", crate::policies::WTinyLfu;
    /// Adaptive replacement cache.
    Arc => "arc", crate::policies::Arc;
    /// LRU and LFU weighted by regret.
    LeCar => "lecar", crate::policies::LeCar;
    /// Staleness counted in visits of the key's layer; for one arena over all layers.
    LeastStale => "least_stale", crate::policies::LeastStale;
    /// Farthest next use; offline, needs [`PolicyConfig::future`].
    BeladyMin => "belady_min", crate::policies::BeladyMin;
}

impl PolicyKind {
    /// Whether the policy needs [`PolicyConfig::future`].
    #[must_use]
    pub const fn is_offline(self) -> bool {
        matches!(self, Self::BeladyMin)
    }

    /// Whether the policy learns from [`Access::probs`]; the others ignore them.
    #[must_use]
    pub const fn uses_probs(self) -> bool {
        matches!(self, Self::InverseRouterEma)
    }

    /// The policy of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = Error;

    /// Reads a [`name`](Self::name); the error lists all of them.
    fn from_str(name: &str) -> Result<Self, Error> {
        Self::from_name(name).ok_or_else(|| Error::UnknownPolicy {
            name: String::from(name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_name_reads_back_and_is_lower_snake() {
        for &kind in PolicyKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert!(
                kind.name()
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            );
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let text = "mru".parse::<PolicyKind>().unwrap_err().to_string();
        for kind in PolicyKind::ALL {
            assert!(text.contains(kind.name()), "{text}");
        }
        assert!(text.contains("\"mru\""));
    }

    #[test]
    fn a_capacity_below_the_batch_is_refused_by_every_policy() {
        for &kind in PolicyKind::ALL {
            let Err(error) = kind.build(&PolicyConfig::new(100, 9, 10)) else {
                panic!("{kind} accepted a capacity below the batch");
            };
            let expected = Error::CapacityBelowBatch {
                capacity: 9,
                batch: 10,
            };
            assert_eq!(error, expected);
        }
    }
}
