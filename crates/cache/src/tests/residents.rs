//! The resident set after every single access, against an independent model of each policy.
//!
//! `tests/data/residents.csv` holds, for 24 random instances a policy (12 for `least_stale`), the
//! misses and a 64-bit FNV-1a over the sorted residents after each access. Its source is a naive
//! script that scans plain lists; the instances are defined by `Instance::new` and `Layered::new`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::sim::{SimConfig, Simulator};
use crate::{Access, AccessLog, Key, KeySpace, PolicyKind, Probs, SplitMix64};

const TABLE: &str = include_str!("../../tests/data/residents.csv");
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

struct Instance {
    space: KeySpace,
    batch: u32,
    capacity: u32,
    log: AccessLog,
}

impl Instance {
    /// One layer; near keys and probabilities are independent of the picks.
    fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let n = 8 + rng.below(25);
        let k = 1 + rng.below(4);
        let capacity = k + rng.below(n - k + 1);
        let mut log = AccessLog::new();
        for clock in 0..300 {
            let keys = draw(&mut rng, n, k, &[]);
            let near = draw(&mut rng, n, k.min(n - k), &keys);
            let probs: Vec<f32> = (0..n).map(|_| rng.below(1024) as f32 / 1024.0).collect();
            log.push(
                &Access::new(clock, &keys)
                    .with_near(&near)
                    .with_probs(Probs::new(Key::new(0), &probs)),
            );
        }
        Self {
            space: KeySpace::new(1, n as u16),
            batch: k as u32,
            capacity: capacity as u32,
            log,
        }
    }

    /// Several layers in turn, one arena.
    fn layered(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let n_layer = 2 + rng.below(4);
        let n = 8 + rng.below(9);
        let k = 1 + rng.below(3);
        let capacity = k + rng.below(n_layer * n - k + 1);
        let mut log = AccessLog::new();
        for token in 0..120 {
            for layer in 0..n_layer {
                let keys: Vec<Key> = draw(&mut rng, n, k, &[])
                    .into_iter()
                    .map(|key| Key::new((layer * n) as u32 + key.id()))
                    .collect();
                log.push(&Access::new(token, &keys));
            }
        }
        Self {
            space: KeySpace::new(n_layer as u16, n as u16),
            batch: k as u32,
            capacity: capacity as u32,
            log,
        }
    }

    fn run(&self, kind: PolicyKind) -> (u64, u64) {
        let config = SimConfig::new(kind, self.space, self.capacity, self.batch);
        let mut simulator = Simulator::new(&config, Some(&self.log)).expect("valid");
        let mut hash = FNV_START;
        let mut fold = |x: u64| hash = (hash ^ x).wrapping_mul(FNV_PRIME);
        for access in self.log.iter() {
            simulator.access(&access).expect("fits");
            simulator.validate().expect("sound");
            for id in 0..self.space.n_keys() {
                if simulator.is_resident(Key::new(id)) {
                    fold(u64::from(id) + 1);
                }
            }
            fold(0);
        }
        (simulator.report().total.n_misses, hash)
    }
}

/// Distinct keys, low ids more often, none of those to avoid.
fn draw(rng: &mut SplitMix64, n: u64, k: u64, avoid: &[Key]) -> Vec<Key> {
    let mut keys = Vec::new();
    while (keys.len() as u64) < k {
        let (a, b) = (rng.below(n), rng.below(n));
        let key = Key::new(a.min(b) as u32);
        if !keys.contains(&key) && !avoid.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

#[test]
fn every_resident_set_is_that_of_the_naive_model() {
    let mut n_rows = 0;
    for line in TABLE.lines().skip(1) {
        let mut fields = line.split(',');
        let mut next = || fields.next().expect("four columns");
        let seed: u64 = next().parse().expect("a seed");
        let kind: PolicyKind = next().parse().expect("a policy");
        let instance = if kind == PolicyKind::LeastStale {
            Instance::layered(seed)
        } else {
            Instance::new(seed)
        };
        let (misses, hash) = instance.run(kind);
        let found: String = format!("{misses},{hash:016x}");
        assert_eq!(
            found,
            format!("{},{}", next(), next()),
            "{kind}, seed {seed}"
        );
        n_rows += 1;
    }
    assert_eq!(n_rows, 24 * 13 + 12);
}
