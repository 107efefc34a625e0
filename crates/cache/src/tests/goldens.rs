//! Figures worked out independently for these definitions, to the last miss.

use alloc::vec::Vec;

use crate::sim::{Report, Scope, SimConfig, replay, route};
use crate::testing::Synth;
use crate::{Access, AccessLog, ExpertKey, Key, KeySpace, Moce, PolicyKind, Residency, serve};
use core::convert::Infallible;

const TINY: [[u32; 2]; 8] = [
    [0, 1],
    [2, 3],
    [0, 4],
    [1, 2],
    [0, 1],
    [3, 4],
    [0, 2],
    [1, 4],
];

/// Order of the columns in the tables below.
const NAMES: [&str; 13] = [
    "lru",
    "fifo",
    "lfu",
    "ema",
    "near_pick_ema",
    "inverse_router_ema",
    "lru2",
    "sieve",
    "s3fifo",
    "wtinylfu",
    "arc",
    "lecar",
    "belady_min",
];

fn tiny() -> AccessLog {
    let mut log = AccessLog::new();
    for (clock, keys) in (0..).zip(TINY) {
        log.push(&Access::new(clock, &keys.map(Key::new)));
    }
    log
}

fn misses(name: &str, log: &AccessLog, space: KeySpace, capacity: u32, batch: u32) -> u64 {
    let kind = name.parse().expect("a policy");
    let config = SimConfig::new(kind, space, capacity, batch);
    replay(log, &config).expect("valid").total.n_misses
}

#[test]
fn the_tiny_trace_gives_the_known_misses() {
    let log = tiny();
    let all = |capacity| NAMES.map(|name| misses(name, &log, KeySpace::new(1, 5), capacity, 2));
    assert_eq!(all(3), [11, 11, 11, 11, 11, 11, 11, 12, 11, 12, 11, 11, 10]);
    assert_eq!(all(4), [9, 10, 9, 8, 8, 8, 8, 9, 10, 8, 9, 8, 7]);
}

#[test]
fn lru_keeps_the_known_residents_after_each_access() {
    let config = crate::PolicyConfig::new(5, 3, 2);
    let mut policy = PolicyKind::Lru.build(&config).expect("valid");
    let mut table = Residency::new(5, 3).expect("small");
    let mut after = Vec::new();
    for access in tiny().iter() {
        serve(&mut table, &mut *policy, &access, |_, _| {
            Ok::<(), Infallible>(())
        })
        .expect("fits");
        let mut keys: Vec<u32> = table.residents().map(|(key, _)| key.id()).collect();
        keys.sort_unstable();
        after.push(keys);
    }
    let expected: [&[u32]; 8] = [
        &[0, 1],
        &[0, 2, 3],
        &[0, 2, 4],
        &[0, 1, 2],
        &[0, 1, 2],
        &[0, 3, 4],
        &[0, 2, 3],
        &[0, 1, 4],
    ];
    assert_eq!(after, expected);
}

#[test]
fn the_synthetic_logits_are_the_known_ones() {
    let synth = Synth::new(7, 240, 32);
    for (z, expected) in synth
        .row(0)
        .iter()
        .zip([1.312291, 1.385470, 4.201481, 3.172438])
    {
        assert!((z - expected).abs() < 5e-7, "{z}");
    }
    let first: Vec<Vec<u32>> = (0..3).map(|t| synth.ranked(t)[..4].to_vec()).collect();
    assert_eq!(first, [[30, 2, 11, 13], [2, 12, 24, 25], [25, 28, 16, 30]]);
}

#[test]
fn the_synthetic_trace_gives_the_known_misses() {
    let log = Synth::new(7, 240, 32).log(4);
    let all = |capacity| NAMES.map(|name| misses(name, &log, KeySpace::new(1, 32), capacity, 4));
    assert_eq!(
        all(8),
        [
            174, 200, 242, 169, 161, 166, 149, 159, 164, 183, 177, 158, 111
        ]
    );
    assert_eq!(
        all(12),
        [38, 59, 133, 52, 45, 52, 47, 47, 47, 58, 42, 44, 33]
    );
    assert_eq!(
        all(16),
        [29, 34, 65, 34, 32, 31, 35, 32, 39, 42, 33, 37, 25]
    );
}

/// Three layers, interleaved token by token.
fn layered() -> AccessLog {
    let layers: Vec<Synth> = (0..3).map(|l| Synth::new(100 + l, 120, 32)).collect();
    let space = KeySpace::new(3, 32);
    let mut log = AccessLog::new();
    for token in 0..120 {
        for (layer, synth) in (0..).zip(&layers) {
            let keys: Vec<Key> = synth.ranked(token)[..4]
                .iter()
                .filter_map(|&e| space.key(ExpertKey::new(layer, e as u16)))
                .collect();
            log.push(&Access::new(token as u64, &keys));
        }
    }
    log
}

#[test]
fn one_arena_over_three_layers_gives_the_known_misses() {
    let log = layered();
    let space = KeySpace::new(3, 32);
    for (name, expected) in [
        ("lru", 352),
        ("fifo", 452),
        ("lfu", 640),
        ("lru2", 312),
        ("sieve", 300),
        ("s3fifo", 319),
        ("wtinylfu", 472),
        ("arc", 351),
        ("lecar", 341),
        ("least_stale", 335),
        ("belady_min", 172),
    ] {
        assert_eq!(misses(name, &log, space, 24, 4), expected, "{name}");
    }
}

#[test]
fn an_arena_for_each_layer_gives_the_known_misses() {
    let log = layered();
    let run = |kind| -> Report {
        let config = SimConfig::new(kind, KeySpace::new(3, 32), 8, 4).with_scope(Scope::PerLayer);
        replay(&log, &config).expect("valid")
    };
    let lru = run(PolicyKind::Lru);
    assert_eq!(lru.total.n_misses, 311);
    assert_eq!(lru.layers.iter().map(|l| l.n_misses).sum::<u64>(), 311);
    assert_eq!(lru.total.n_tokens, 120);
    assert_eq!(lru.total.n_picks, 120 * 3 * 4);
    assert_eq!(run(PolicyKind::BeladyMin).total.n_misses, 203);
}

#[test]
fn routing_with_a_bias_gives_the_known_misses_agreement_and_divergence() {
    let synth = Synth::new(7, 240, 32);
    let config = SimConfig::new(PolicyKind::Lru, KeySpace::new(1, 32), 12, 4);
    let run = |lambda: f32, top_j| {
        let bias = crate::Bias::Relative {
            lambda,
            avg: crate::RangeAvg::Cumulative,
        };
        let moce = Moce::new(bias).with_protected(top_j);
        route(240, &config, &moce, |token, _, row| {
            for (out, &z) in row.iter_mut().zip(synth.row(token as usize)) {
                *out = z as f32;
            }
        })
        .expect("valid")
    };
    for (lambda, misses, agreement, kl) in [
        (0.0, 38, 1.0, 0.0),
        (0.05, 28, 0.9802, 0.00124),
        (0.09, 23, 0.9625, 0.00368),
        (0.2, 19, 0.9344, 0.01132),
        (0.5, 19, 0.9271, 0.01745),
        (1.0, 19, 0.9271, 0.01745),
    ] {
        let report = run(lambda, 1);
        assert_eq!(report.cache.total.n_misses, misses, "lambda {lambda}");
        assert!((report.agreement().expect("ran") - agreement).abs() < 5.1e-5);
        assert!((report.routing_kl().expect("ran") - kl).abs() < 5.1e-6);
        assert_eq!(report.exact_set_rate() == Some(1.0), lambda == 0.0);
    }
    // With the whole choice protected, the closed loop is the open loop.
    assert_eq!(run(1.0, 4).cache.total.n_misses, 38);
    assert_eq!(run(1.0, 4).exact_set_rate(), Some(1.0));
}
