//! Speed of the cache policies, beside two public caches doing the same work.
//!
//! Group `cache_serve/<policy>`: batches of 10 keys through `serve`, 512 keys, 113 slots, one
//! thread; throughput is in keys. `quick_cache` and `moka` look the same keys up in the same order
//! and insert what they miss; they know no batches, so nothing keeps a batch together there.
//! `cache_route` is one biased choice of 10 among 512. Times are CPU time of the thread, so that
//! what else runs on the machine counts little; all of them are single-threaded.
//!
//! `near_pick_ema` and `inverse_router_ema` get no hints here, so they choose as `ema` does, and the
//! time of the latter leaves out what it does with probabilities; the tables skip both.
//!
//! Before the groups a table of hit rates on the same accesses is printed, and a second one for the
//! trace named by the variable `THALWEG_TRACE`, if there is one (24 slots a layer).

use std::convert::Infallible;
use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};
use thalweg_cache::sim::{self, Scope, SimConfig};
use thalweg_cache::{
    Access, AccessLog, ExpertKey, Key, KeySpace, PolicyConfig, PolicyKind, Residency, Router,
    SplitMix64, Weights, serve,
};
use thalweg_trace::TraceFile;

const N_KEYS: u32 = 512;
const N_SLOTS: u32 = 113;
const BATCH: usize = 10;
const N_ACCESSES: usize = 4096;
/// Slots a layer on a trace.
const TRACE_SLOTS: u32 = 24;

/// CPU time of the thread.
struct CpuTime;

impl CpuTime {
    fn now() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        // Neither is negative.
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        Self::now()
    }

    fn end(&self, start: Duration) -> Duration {
        Self::now().saturating_sub(start)
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Skewed batches whose favorites change every 512 accesses: the same on every run.
fn accesses() -> Vec<[Key; BATCH]> {
    let mut rng = SplitMix64::new(113);
    let mut key = |phase: u32, taken: &[Key]| loop {
        // Cubing prefers low ranks; the ranks are spread over all keys, anew in each phase.
        let rank = (rng.unit().powi(3) * f64::from(N_KEYS)) as u32;
        let key = Key::new((rank * 197 + phase * 61) % N_KEYS);
        if !taken.contains(&key) {
            return key;
        }
    };
    (0..N_ACCESSES)
        .map(|i| {
            let phase = i as u32 / 512;
            let mut batch = [Key::new(0); BATCH];
            for n in 0..BATCH {
                batch[n] = key(phase, &batch[..n]);
            }
            batch
        })
        .collect()
}

/// A cache with values, as an application would have it.
trait Cache {
    /// Looks every key of the batch up, lightest first, and inserts it where it is missing; returns
    /// the hits.
    fn batch(&mut self, clock: u64, keys: &[Key]) -> u32;

    /// Does what was put off, so that no more is held than was agreed. Not part of the speed.
    fn settle(&mut self) {}
}

struct Ours {
    table: Residency,
    policy: Box<dyn thalweg_cache::Policy>,
    values: Vec<u32>,
}

impl Ours {
    fn new(policy: PolicyKind, n_keys: u32, n_slots: u32, batch: u32) -> Self {
        let config = PolicyConfig::new(n_keys, n_slots, batch);
        Self {
            table: Residency::new(n_keys, n_slots).expect("small"),
            policy: policy.build(&config).expect("online"),
            values: vec![0; n_slots as usize],
        }
    }
}

impl Cache for Ours {
    fn batch(&mut self, clock: u64, keys: &[Key]) -> u32 {
        let access = Access::new(clock, keys);
        let values = &mut self.values;
        let served = serve(&mut self.table, &mut *self.policy, &access, |key, slot| {
            values[slot.index()] = key.id();
            Ok::<(), Infallible>(())
        })
        .expect("a valid batch");
        for &key in keys {
            let slot = self.table.slot(key).expect("just served");
            black_box(self.values[slot.index()]);
        }
        served.n_hit
    }
}

struct QuickCache(quick_cache::unsync::Cache<u32, u32>);

impl Cache for QuickCache {
    fn batch(&mut self, _: u64, keys: &[Key]) -> u32 {
        let mut hits = 0;
        for key in keys.iter().rev() {
            match self.0.get(&key.id()) {
                Some(value) => {
                    black_box(*value);
                    hits += 1;
                }
                None => self.0.insert(key.id(), key.id()),
            }
        }
        hits
    }
}

struct Moka(moka::sync::Cache<u32, u32>);

impl Moka {
    fn new(n_slots: u32, policy: moka::policy::EvictionPolicy) -> Self {
        let builder = moka::sync::Cache::builder().max_capacity(n_slots.into());
        Self(builder.eviction_policy(policy).build())
    }
}

impl Cache for Moka {
    fn batch(&mut self, _: u64, keys: &[Key]) -> u32 {
        let mut hits = 0;
        for key in keys.iter().rev() {
            match self.0.get(&key.id()) {
                Some(value) => {
                    black_box(value);
                    hits += 1;
                }
                None => self.0.insert(key.id(), key.id()),
            }
        }
        hits
    }

    fn settle(&mut self) {
        self.0.run_pending_tasks();
    }
}

/// Whether the policy of this name learns from more than the keys of a batch.
fn needs_hints(name: &str) -> bool {
    ["near_pick_ema", "inverse_router_ema"].contains(&name)
}

/// Every cache under its name. Offline policies have no place here.
fn caches(n_keys: u32, n_slots: u32, batch: u32) -> Vec<(String, Box<dyn Cache>)> {
    let mut caches: Vec<(String, Box<dyn Cache>)> = Vec::new();
    for &policy in PolicyKind::ALL.iter().filter(|p| !p.is_offline()) {
        let cache = Ours::new(policy, n_keys, n_slots, batch);
        caches.push((policy.name().to_owned(), Box::new(cache)));
    }
    let quick = quick_cache::unsync::Cache::new(n_slots as usize);
    caches.push(("quick_cache".to_owned(), Box::new(QuickCache(quick))));
    for (name, policy) in [
        ("moka_tiny_lfu", moka::policy::EvictionPolicy::tiny_lfu()),
        ("moka_lru", moka::policy::EvictionPolicy::lru()),
    ] {
        caches.push((name.to_owned(), Box::new(Moka::new(n_slots, policy))));
    }
    caches
}

fn speed(c: &mut Criterion<CpuTime>) {
    let accesses = accesses();
    print_synthetic(&accesses);
    if let Ok(path) = std::env::var("THALWEG_TRACE") {
        print_trace(&path);
    }
    let mut group = c.benchmark_group("cache_serve");
    group.throughput(Throughput::Elements((N_ACCESSES * BATCH) as u64));
    for (name, mut cache) in caches(N_KEYS, N_SLOTS, BATCH as u32) {
        let mut clock = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                for batch in black_box(&accesses) {
                    black_box(cache.batch(clock, batch));
                    clock += 1;
                }
            });
        });
    }
    group.finish();
}

fn route(c: &mut Criterion<CpuTime>) {
    let mut rng = SplitMix64::new(7);
    let row: Vec<f32> = (0..N_KEYS).map(|_| (rng.unit() * 9.0) as f32).collect();
    let resident: Vec<bool> = (0..N_KEYS).map(|_| rng.unit() < 0.22).collect();
    let mut router = Router::new(N_KEYS as u16, BATCH as u16).expect("valid");
    c.bench_function("cache_route/10_of_512", |b| {
        b.iter(|| {
            let resident = |e: u16| resident[usize::from(e)];
            let route = router.route(black_box(&row), 0.8, 3, Weights::Unbiased, resident);
            black_box(route.expect("valid").n_missing)
        });
    });
}

/// Hit rates on the accesses of the speed group, each cache started empty.
fn print_synthetic(accesses: &[[Key; BATCH]]) {
    println!("hit rate: {N_KEYS} keys, {N_SLOTS} slots, batches of {BATCH}, skewed accesses");
    let n_picks = (accesses.len() * BATCH) as f64;
    for (name, mut cache) in caches(N_KEYS, N_SLOTS, BATCH as u32) {
        let batches = (0..).zip(accesses);
        let hits = batches.map(|(clock, keys)| {
            let hits = cache.batch(clock, keys);
            cache.settle();
            hits
        });
        let hits: u32 = hits.sum();
        if !needs_hints(&name) {
            println!("hit_rate,synthetic,{name},{:.4}", f64::from(hits) / n_picks);
        }
    }
    let mut log = AccessLog::new();
    for (clock, keys) in (0..).zip(accesses) {
        log.push(&Access::new(clock, keys));
    }
    let space = KeySpace::new(1, N_KEYS as u16);
    let config = SimConfig::new(PolicyKind::BeladyMin, space, N_SLOTS, BATCH as u32);
    let bound = sim::replay(&log, &config).expect("valid").total.hit_rate();
    println!("hit_rate,synthetic,belady_min,{:.4}", bound.unwrap_or(0.0));
}

/// Hit rates on the choices of a recorded run, a cache for each layer.
fn print_trace(path: &str) {
    let file = TraceFile::open(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let trace = file.trace();
    let shape = trace.shape();
    let (n_layer, k) = (shape.n_layer as usize, u32::from(shape.k));
    println!(
        "hit rate: {path}, {TRACE_SLOTS} slots a layer, {} tokens",
        trace.n_tokens()
    );
    let mut layers: Vec<_> = (0..n_layer)
        .map(|_| caches(shape.n_expert, TRACE_SLOTS, k))
        .collect();
    let names: Vec<String> = layers[0].iter().map(|(name, _)| name.clone()).collect();
    let mut hits = vec![0u64; names.len()];
    let space = KeySpace::new(shape.n_layer as u16, shape.n_expert as u16);
    let mut log = AccessLog::new();
    for (clock, token) in (0..).zip(trace.tokens()) {
        for (layer, choice) in (0u16..).zip(token.layers()) {
            let keys: Vec<Key> = choice.experts().map(|e| Key::new(e.into())).collect();
            let caches = &mut layers[usize::from(layer)];
            for ((_, cache), hits) in caches.iter_mut().zip(&mut hits) {
                *hits += u64::from(cache.batch(clock, &keys));
                cache.settle();
            }
            let pair = |e| space.key(ExpertKey::new(layer, e)).expect("in the trace");
            let keys: Vec<Key> = choice.experts().map(pair).collect();
            log.push(&Access::new(clock, &keys));
        }
    }
    let n_picks = log.n_picks() as f64;
    let rows = names.iter().zip(&hits);
    for (name, hits) in rows.filter(|(name, _)| !needs_hints(name)) {
        println!("hit_rate,trace,{name},{:.4}", *hits as f64 / n_picks);
    }
    let config = SimConfig::new(PolicyKind::BeladyMin, space, TRACE_SLOTS, k);
    let config = config.with_scope(Scope::PerLayer);
    let bound = sim::replay(&log, &config).expect("valid").total.hit_rate();
    println!("hit_rate,trace,belady_min,{:.4}", bound.unwrap_or(0.0));
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = speed, route
}
criterion_main!(benches);
