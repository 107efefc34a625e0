//! Random sequences of everything that a store offers, against one that never reads ahead.

use std::io::ErrorKind;
use std::ops::ControlFlow;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use thalweg_cache::{ExpertKey, Key, PolicyKind};
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan, FaultReader};
use thalweg_store::{Error, ExpertAccess, ExpertStore, PreadBackend};

use crate::experts::online_policies;
use crate::fixture::{EXPERT_BYTES, Fixture, K, LAYERS, residents, validate};
use crate::stream::backend;

/// How a lease or a stream ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// As it should.
    Whole,
    /// Dropped after so many waits or batches.
    Dropped(usize),
    /// Forgotten after so many.
    Forgotten(usize),
}

#[derive(Clone, Debug)]
enum Op {
    /// Acquire and look at it when all is there.
    Acquire {
        layer: usize,
        picks: Vec<u16>,
    },
    /// Acquire and look at it after each wait.
    Open {
        layer: usize,
        picks: Vec<u16>,
        end: End,
    },
    ReadAhead {
        layer: usize,
        experts: Vec<u16>,
    },
    Stream {
        layer: usize,
        experts: Vec<u16>,
        end: End,
    },
    Warm(Vec<(u16, u16)>),
    Settle,
}

/// What a sequence has asked for, by layer.
#[derive(Clone, Copy, Default)]
struct Asked {
    /// Experts of leases that were finished and of batches that were handed out.
    experts: u64,
    /// Experts that a fill has loaded.
    filled: u64,
}

fn operation() -> impl Strategy<Value = Op> {
    let layer = || 0..LAYERS.len();
    // What every layer has.
    let picks = || subsequence((0..9_u16).collect::<Vec<_>>(), 1..=6).prop_shuffle();
    let some = || subsequence((0..12_u16).collect::<Vec<_>>(), 0..=8).prop_shuffle();
    let end = || {
        prop_oneof![
            3 => Just(End::Whole),
            1 => (0..4_usize).prop_map(End::Dropped),
            1 => (0..4_usize).prop_map(End::Forgotten),
        ]
    };
    prop_oneof![
        6 => (layer(), picks()).prop_map(|(layer, picks)| Op::Acquire { layer, picks }),
        4 => (layer(), picks(), end())
            .prop_map(|(layer, picks, end)| Op::Open { layer, picks, end }),
        6 => (layer(), some()).prop_map(|(layer, experts)| Op::ReadAhead { layer, experts }),
        2 => (layer(), some(), end())
            .prop_map(|(layer, experts, end)| Op::Stream { layer, experts, end }),
        1 => vec((0..5_u16, 0..13_u16), 0..20).prop_map(Op::Warm),
        1 => Just(Op::Settle),
    ]
}

/// A store and what it was asked for.
struct Subject<'a> {
    fixture: &'a Fixture,
    store: ExpertStore,
    asked: [Asked; LAYERS.len()],
    n_guesses: u64,
    n_failures: u64,
    /// Reads of leases that were given up are in no other figure.
    gave_up: bool,
}

impl<'a> Subject<'a> {
    fn new(fixture: &'a Fixture, store: ExpertStore) -> Self {
        Self {
            fixture,
            store,
            asked: Default::default(),
            n_guesses: 0,
            n_failures: 0,
            gave_up: false,
        }
    }

    /// Does it and checks what is seen; false if it failed.
    fn apply(&mut self, clock: u64, op: &Op) -> bool {
        let result = match op {
            Op::Acquire { layer, picks } => self.acquire(clock, *layer, picks),
            Op::Open { layer, picks, end } => self.open(clock, *layer, picks, *end),
            Op::ReadAhead { layer, experts } => {
                self.read_ahead(*layer, experts);
                Ok(())
            }
            Op::Stream {
                layer,
                experts,
                end,
            } => self.stream(*layer, experts, *end),
            Op::Warm(ranking) => self.warm(ranking),
            Op::Settle => self.store.settle(),
        };
        if let Err(error) = &result {
            check_failure(error);
        }
        validate(&self.store);
        self.check_counters();
        result.is_ok()
    }

    fn picks<'p>(&self, layer: usize, picks: &'p [u16]) -> &'p [u16] {
        &picks[..picks.len().min(self.store.max_batch(layer))]
    }

    fn acquire(&mut self, clock: u64, layer: usize, picks: &[u16]) -> Result<(), Error> {
        let picks = self.picks(layer, picks);
        let was: Vec<u16> = residents(&self.store, layer);
        let served = self.store.acquire(clock, layer, picks).map(|lease| {
            self.fixture.check(&lease, layer, picks);
            for (i, expert) in picks.iter().enumerate() {
                assert_eq!(lease.was_miss(i), !was.contains(expert));
            }
        });
        match &served {
            Ok(()) => self.asked[layer].experts += picks.len() as u64,
            Err(_) => {
                self.check_undone(layer, picks, &was);
                self.n_failures += 1;
                self.gave_up = true;
            }
        }
        served
    }

    fn open(&mut self, clock: u64, layer: usize, picks: &[u16], end: End) -> Result<(), Error> {
        let picks = self.picks(layer, picks);
        let was: Vec<u16> = residents(&self.store, layer);
        let n_waits = match end {
            End::Whole => usize::MAX,
            End::Dropped(n) | End::Forgotten(n) => n,
        };
        let opened = self
            .store
            .begin_acquire(&ExpertAccess::new(clock, layer, picks));
        let served = opened.and_then(|mut lease| {
            let mut n_here = self.fixture.check_open(&lease, layer, picks);
            for _ in 0..n_waits {
                if lease.is_complete() {
                    break;
                }
                lease.wait()?;
                let n = self.fixture.check_open(&lease, layer, picks);
                assert!(n > n_here, "a wait brings something");
                n_here = n;
            }
            match end {
                End::Whole => lease.finish()?,
                End::Dropped(_) => {}
                End::Forgotten(_) => std::mem::forget(lease),
            }
            Ok(())
        });
        if served.is_ok() && matches!(end, End::Whole) {
            self.asked[layer].experts += picks.len() as u64;
        } else {
            self.gave_up = true;
            self.n_failures += u64::from(served.is_err());
            self.check_undone(layer, picks, &was);
        }
        served
    }

    /// No miss is resident, every hit is.
    fn check_undone(&self, layer: usize, picks: &[u16], was: &[u16]) {
        for pick in picks {
            let expected = was.contains(pick);
            assert_eq!(self.store.is_resident(layer, *pick), expected);
        }
    }

    fn read_ahead(&mut self, layer: usize, experts: &[u16]) {
        let n = self.store.read_ahead(layer, experts);
        assert!(n <= self.store.n_transit());
        self.n_guesses += n as u64;
    }

    fn stream(&mut self, layer: usize, experts: &[u16], end: End) -> Result<(), Error> {
        let last = LAYERS[layer].0 as u16;
        let list: Vec<u16> = experts.iter().copied().filter(|e| *e < last).collect();
        let was = residents(&self.store, layer);
        let n_batches = match end {
            End::Whole => usize::MAX,
            End::Dropped(n) | End::Forgotten(n) => n,
        };
        let mut seen = Vec::new();
        let mut is_over = false;
        let streamed = self.store.stream(layer, &list).and_then(|mut stream| {
            for _ in 0..n_batches {
                if !stream.next_batch()? {
                    is_over = true;
                    break;
                }
                seen.extend(self.fixture.check_batch(&stream, layer));
            }
            if matches!(end, End::Forgotten(_)) {
                std::mem::forget(stream);
            }
            Ok(())
        });
        self.asked[layer].experts += seen.len() as u64;
        seen.sort_unstable();
        assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "{seen:?}");
        assert!(seen.iter().all(|e| list.contains(e)));
        if is_over {
            assert_eq!(seen.len(), list.len());
        }
        assert_eq!(residents(&self.store, layer), was);
        match &streamed {
            // Not counted: nothing had begun.
            Err(Error::NoTransit { .. }) => {
                assert_eq!(self.store.n_transit(), 0);
                return Ok(());
            }
            Err(_) => {
                self.n_failures += 1;
                // What the check or the file refused was read and is in no other figure.
                self.gave_up = true;
            }
            Ok(()) => {}
        }
        streamed
    }

    fn warm(&mut self, ranking: &[(u16, u16)]) -> Result<(), Error> {
        let count = |store: &ExpertStore| [0, 1, 2, 3].map(|l| residents(store, l).len() as u64);
        let before = count(&self.store);
        let ranking: Vec<_> = ranking
            .iter()
            .map(|(layer, expert)| ExpertKey::new(*layer, *expert))
            .collect();
        let go_on = |n, of| {
            assert!(n <= of);
            ControlFlow::Continue(())
        };
        let filled = self.store.warm_fill(&ranking, go_on);
        let after = count(&self.store);
        let mut n_filled = 0;
        for (asked, (after, before)) in self.asked.iter_mut().zip(after.into_iter().zip(before)) {
            // Never evicts.
            asked.filled += after - before;
            n_filled += after - before;
        }
        if let Ok(fill) = &filled {
            assert_eq!(fill.experts as u64, n_filled);
        }
        filled.map(|_| ())
    }

    fn check_counters(&self) {
        let stats = self.store.stats();
        let mut sums = (0, 0, 0);
        let mut n_bytes = 0;
        for (layer, asked) in self.asked.iter().enumerate() {
            let of = self.store.layer_stats(layer).unwrap();
            assert_eq!(of.hits + of.guessed_hits + of.misses, asked.experts);
            sums.0 += of.hits;
            sums.1 += of.guessed_hits;
            sums.2 += of.misses;
            let n_read = of.guessed_hits + of.misses + asked.filled;
            n_bytes += n_read * EXPERT_BYTES[layer];
        }
        assert_eq!(sums, (stats.hits, stats.guessed_hits, stats.misses));
        assert_eq!(stats.guesses, self.n_guesses);
        assert!(stats.late_guesses <= stats.guessed_hits);
        assert!(stats.guessed_hits <= stats.guesses);
        assert_eq!(stats.failures, self.n_failures);
        assert!(n_bytes + stats.wasted_bytes <= stats.bytes_read);
    }

    /// Once nothing is under way every byte is accounted for.
    fn end(&mut self) {
        self.store.settle().unwrap();
        validate(&self.store);
        self.check_counters();
        for layer in 0..LAYERS.len() {
            assert_eq!(self.store.residency(layer).unwrap().n_pinned(), 0);
        }
        let n_bytes = |layer: usize, asked: &Asked| {
            let of = self.store.layer_stats(layer).unwrap();
            let n_read = of.guessed_hits + of.misses + asked.filled;
            n_read * EXPERT_BYTES[layer]
        };
        let used: u64 = (0..).zip(&self.asked).map(|(l, a)| n_bytes(l, a)).sum();
        let stats = self.store.stats();
        if !self.gave_up {
            assert_eq!(stats.bytes_read, used + stats.wasted_bytes);
        }
        // Every transit slot is free.
        let layer = (0..LAYERS.len()).find(|l| residents(&self.store, *l).len() < 4);
        let absent = |layer: usize| {
            let here = residents(&self.store, layer);
            let all = 0..LAYERS[layer].0 as u16;
            all.filter(|e| !here.contains(e)).collect::<Vec<_>>()
        };
        if let Some(layer) = layer {
            let absent = absent(layer);
            let n = self.store.read_ahead(layer, &absent);
            assert_eq!(n, self.store.n_transit().min(absent.len()));
        }
    }
}

/// The error of a read, in an expert's name.
fn check_failure(error: &Error) {
    let Error::Expert { source, .. } = error else {
        panic!("{error}");
    };
    assert!(
        matches!(**source, Error::Read { .. } | Error::UnexpectedEof { .. }),
        "{source}"
    );
}

/// Residents, slots and evictions are those of a store that is only ever asked for experts.
fn compare(
    fixture: &Fixture,
    policy: PolicyKind,
    (which, slots, transit): (usize, usize, usize),
    ops: &[Op],
) {
    let store = fixture.transit_store(slots, transit, policy, |files| backend(which, files));
    let mut subject = Subject::new(fixture, store.unwrap());
    let alone = fixture.store_with(slots, policy, |files| Box::new(PreadBackend::new(files)));
    let mut alone = Subject::new(fixture, alone.unwrap());
    for (clock, op) in (0..).zip(ops) {
        assert!(subject.apply(clock, op), "{policy}, step {clock}");
        if !matches!(op, Op::ReadAhead { .. } | Op::Stream { .. } | Op::Settle) {
            alone.apply(clock, op);
        }
        for (layer, (n_expert, _)) in LAYERS.iter().enumerate() {
            let tables = [&subject, &alone].map(|s| s.store.residency(layer).unwrap());
            for expert in 0..*n_expert as u32 {
                // A forgotten lease still holds slots in the store that has not gone on.
                let key = Key::new(expert);
                if tables.iter().all(|table| table.is_resident(key)) {
                    let [found, expected] = tables.map(|table| table.slot(key));
                    assert_eq!(found, expected, "{policy}, step {clock}: {layer}:{expert}");
                }
            }
            let [found, expected] = [&subject, &alone].map(|s| residents(&s.store, layer));
            assert_eq!(found, expected, "{policy}, step {clock}: layer {layer}");
        }
        let [found, expected] = [&subject, &alone].map(|s| s.store.stats().evictions);
        assert_eq!(found, expected, "{policy}, step {clock}");
    }
    subject.end();
    alone.end();
}

fn policy() -> impl Strategy<Value = PolicyKind> {
    select(online_policies().collect::<Vec<_>>())
}

fn faults() -> impl Strategy<Value = FaultPlan> {
    let fault = prop_oneof![
        Just(Fault::Fail(ErrorKind::Other)),
        Just(Fault::Eof),
        Just(Fault::Busy),
        Just(Fault::Delay(std::time::Duration::from_micros(200))),
    ];
    (any::<u64>(), 0.0..0.3, fault, any::<bool>()).prop_map(|(seed, share, fault, reorder)| {
        let plan = FaultPlan::new().with_random(seed, share, fault);
        match reorder {
            true => plan.with_reordering(seed),
            false => plan,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 2,
        ..ProptestConfig::default()
    })]

    #[test]
    fn read_ahead_and_streams_leave_residency_as_it_would_be_without_them(
        policy in policy(),
        shape in (0..4_usize, K..=12_usize, 0..=5_usize),
        ops in vec(operation(), 1..30),
    ) {
        compare(&Fixture::new(), policy, shape, &ops);
    }

    #[test]
    fn a_store_whose_reads_fail_stays_sound_whatever_it_is_asked(
        policy in policy(),
        slots in K..=12_usize,
        transit in 0..=5_usize,
        plan in faults(),
        ops in vec(operation(), 1..30),
    ) {
        let fixture = Fixture::new();
        let store = fixture.transit_store(slots, transit, policy, |files| {
            let reader = FaultReader::new(files.clone(), 1, 2999);
            let pread = PreadBackend::with_reader(files.clone(), reader);
            Box::new(FaultBackend::new(pread, files, plan))
        });
        let mut subject = Subject::new(&fixture, store.unwrap());
        for (clock, op) in (0..).zip(&ops) {
            subject.apply(clock, op);
        }
        subject.end();
    }
}
