//! The offline policy against exhaustive search.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::sim::{SimConfig, replay};
use crate::{Access, AccessLog, Key, KeySpace, PolicyKind, SplitMix64};

/// Fewest misses over every choice of what to keep; sets of keys are bit masks.
fn fewest_misses(batches: &[u32], capacity: u32) -> u32 {
    let mut least: BTreeMap<u32, u32> = BTreeMap::from([(0, 0)]);
    for &batch in batches {
        let room = capacity - batch.count_ones();
        let mut next = BTreeMap::new();
        for (&resident, &misses) in &least {
            let misses = misses + (batch & !resident).count_ones();
            let rest = resident & !batch;
            // Every subset of the rest, including those smaller than need be.
            let mut keep = rest;
            loop {
                if keep.count_ones() <= room {
                    let entry = next.entry(batch | keep).or_insert(u32::MAX);
                    *entry = misses.min(*entry);
                }
                if keep == 0 {
                    break;
                }
                keep = (keep - 1) & rest;
            }
        }
        least = next;
    }
    least.into_values().min().unwrap_or(0)
}

#[test]
fn belady_equals_exhaustive_search_on_400_instances_and_nothing_beats_it() {
    let mut rng = SplitMix64::new(42);
    let mut n_worse = 0;
    for _ in 0..400 {
        let n_keys = 4 + rng.below(3) as u32;
        let batch = 1 + rng.below(3) as usize;
        let capacity = batch as u32 + rng.below(3) as u32;
        let n_accesses = 5 + rng.below(5);
        let mut log = AccessLog::new();
        let mut masks = Vec::new();
        for clock in 0..n_accesses {
            let mut keys: Vec<Key> = (0..n_keys).map(Key::new).collect();
            for i in (1..keys.len()).rev() {
                keys.swap(i, rng.below(i as u64 + 1) as usize);
            }
            keys.truncate(batch);
            masks.push(keys.iter().fold(0, |mask, key| mask | 1 << key.id()));
            log.push(&Access::new(clock, &keys));
        }
        let best = fewest_misses(&masks, capacity);
        for &kind in PolicyKind::ALL {
            let space = KeySpace::new(1, n_keys as u16);
            let config = SimConfig::new(kind, space, capacity, batch as u32);
            let misses = replay(&log, &config).expect("valid").total.n_misses;
            if kind == PolicyKind::BeladyMin {
                assert_eq!(misses, u64::from(best));
            }
            assert!(misses >= u64::from(best), "{kind}");
            n_worse += u32::from(misses > u64::from(best));
        }
    }
    assert!(n_worse > 1000, "the instances tell policies apart");
}
