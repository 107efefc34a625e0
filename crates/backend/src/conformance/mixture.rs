//! The router, routed experts and their ordered sum.

use super::naive;
use super::rig::{
    MARK, Random, Rig, assert_close, assert_same_bits, assert_splits_agree, rows, values,
};
use super::{ELEMENT, SUM};
use crate::contract::*;
use crate::{Error, ExpertView, MatData, Result, Routing};

/// Random logits, ties and near ties, one expert and all of them.
pub fn router_takes_the_largest_and_the_lower_id<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for (n_expert, k) in [(1, 1), (8, 8), (33, 3), (512, 10)] {
        for n_tokens in [1, 3, 33] {
            let mut logits = values(n_tokens * n_expert, 1);
            // Every other token has only eight distinct logits.
            for row in logits.chunks_exact_mut(n_expert).step_by(2) {
                row.iter_mut().for_each(|z| *z = (*z * 4.0).round());
            }
            let routing = route(&mut rig, n_expert, k, &logits).unwrap();
            assert_eq!(routing.bad_rows(), 0);
            for (t, z) in logits.chunks_exact(n_expert).enumerate() {
                let mut order: Vec<usize> = (0..n_expert).collect();
                // A stable sort: equal logits stay in the order of their ids.
                order.sort_by(|a, b| z[*b].partial_cmp(&z[*a]).expect("finite"));
                let ids: Vec<usize> = routing.ids(t).iter().map(|id| usize::from(*id)).collect();
                assert_eq!(ids, order[..k], "router, token {t} of {n_expert} experts");
                let power = |id: &usize| f64::from(z[*id]).exp();
                let total: f64 = ids.iter().map(power).sum();
                let expected: Vec<f64> = ids.iter().map(|id| power(id) / total).collect();
                assert_close("router weights", routing.weights(t), &expected, ELEMENT);
                assert_same_bits("router logits", routing.logits(t), z);
            }
        }
    }
    let up = 2.0f32.next_up();
    let routing = route(&mut rig, 3, 1, &[2.0, up, 0.0]).unwrap();
    assert_eq!(routing.ids(0), [1], "one unit in the last place decides");
}

/// NaN and infinities are never chosen; too few finite logits are an error that says where.
pub fn router_passes_over_what_is_not_finite<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let logits = [
        [0.0, 1.0, 2.0, 3.0],   // Good.
        [nan, 1.0, inf, 3.0],   // Two bad ones.
        [-inf, 1.0, -inf, 0.0], // Masked, which is not bad.
    ];
    let routing = route(&mut rig, 4, 2, logits.as_flattened()).unwrap();
    assert_eq!(
        [0, 1, 2].map(|t| routing.ids(t).to_vec()),
        [[3, 2], [3, 1], [1, 3]]
    );
    assert_eq!(routing.bad_rows(), 1);
    for t in 0..3 {
        let sum: f32 = routing.weights(t).iter().sum();
        assert!(
            (sum - 1.0).abs() < 1e-6,
            "weights of token {t} sum to {sum}"
        );
    }
    for bad in [nan, inf, -inf] {
        // Token 0 is good; of token 1 one logit too few is finite.
        let mut logits = vec![0.5; 2 * 12];
        logits[12..].fill(bad);
        logits[15..24].fill(0.25);
        match route(&mut rig, 12, 10, &logits).unwrap_err() {
            Error::RouterNotFinite {
                token,
                finite,
                n_expert,
                needed,
            } => {
                assert_eq!((token, finite, n_expert, needed), (1, 9, 12, 10));
            }
            e => panic!("router: {e:?}"),
        }
    }
}

/// Tokens in any order, repeated over experts, absent, alone; rows of no job stay as they are.
pub fn experts_run_on_their_tokens_alone<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for (n_embd, n_ff) in [(1, 1), (7, 5), (33, 80)] {
        let experts = Experts::new(5, n_embd, n_ff);
        for n_tokens in [1, 3, 33] {
            let x = values(n_tokens * n_embd, 2);
            let all: Vec<u32> = (0..n_tokens as u32).collect();
            let backward: Vec<u32> = all.iter().rev().copied().collect();
            let last = [n_tokens as u32 - 1];
            // Job rows are not in job order; expert 1 has no token; two rows are nobody's.
            let lists: [(&[u32], usize); 5] = [
                (&all, n_tokens + 2),
                (&[], 0),
                (&last, 1),
                (&backward, 2 * n_tokens + 2),
                (&[0], 3 * n_tokens + 2),
            ];
            let jobs = experts.jobs(&lists);
            let n_rows = 3 * n_tokens + 3;
            let found = rig.experts(&jobs, &x, n_rows, n_embd).unwrap();
            let mut written = vec![false; n_rows];
            for (e, (tokens, first_row)) in lists.into_iter().enumerate() {
                for (i, &t) in tokens.iter().enumerate() {
                    let row = first_row + i;
                    written[row] = true;
                    let x = &x[t as usize * n_embd..(t as usize + 1) * n_embd];
                    let expected = naive::expert(experts.weights(e), n_ff, x);
                    let what = format!("expert {e} of {n_embd} x {n_ff}, token {t}");
                    let found = &found[row * n_embd..(row + 1) * n_embd];
                    assert_close(&what, found, &expected, SUM);
                }
            }
            for (row, found) in found
                .chunks_exact(n_embd)
                .enumerate()
                .filter(|r| !written[r.0])
            {
                assert_same_bits(&format!("row {row}"), found, &vec![MARK; n_embd]);
            }
        }
    }
}

/// Jobs one by one, in any order, into rows of any order: the same rows as all at once.
pub fn experts_in_passes_are_experts_at_once_bit_for_bit<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let (n, k, n_embd) = (71, 3, 33);
    let experts = Experts::new(6, n_embd, 40);
    let x = values(n * n_embd, 3);
    let (shared, gates) = (values(n * n_embd, 4), values(n, 5));
    let choice = Choice::random(n, k, 6);

    assert_splits_agree("experts and combine", n, |chunks| {
        let mut all = vec![];
        for c in chunks {
            let choice = choice.of(c.clone());
            let x = rows(&x, c, n_embd);
            let [shared, gates] = [rows(&shared, c, n_embd), rows(&gates, c, 1)];
            let at_once = choice.run(&mut rig, &experts, &x, n_embd, &shared, &gates, 1, false);
            for (n_passes, backward) in [(1, true), (2, false), (3, true), (6, false)] {
                let passes = choice.run(
                    &mut rig, &experts, &x, n_embd, &shared, &gates, n_passes, backward,
                );
                assert_same_bits(&format!("experts in {n_passes} passes"), &passes, &at_once);
            }
            all.extend(at_once);
        }
        all
    });
}

/// Copies that a device keeps, in fewer slots than there are experts, with calls that fill, evict
/// and pass by: the same rows as bytes of the host, to the bit. A backend that keeps none says so.
pub fn copies_of_experts_are_experts_bit_for_bit<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let (n_expert, n_embd, n_ff) = (7, 33, 40);
    let layers: Vec<Experts> = (0..2)
        .map(|l| Experts::seeded(n_expert, n_embd, n_ff, 1000 * l))
        .collect();
    let x = values(3 * n_embd, 15);
    let ty = layers[0].0[0][0].1.view().ty();
    let mat = |n_in, n_out| MatShape { ty, n_in, n_out };
    let parts = [mat(n_embd, n_ff), mat(n_embd, n_ff), mat(n_ff, n_embd)];
    for n_slots in [0, 1, 3, n_expert] {
        let room = ExpertRoom {
            n_expert,
            n_slots,
            parts,
        };
        rig.keep_experts(&[room, room]);
        let mut random = Random(17 + n_slots as u64);
        for step in 0..60 {
            let layer = random.below(2);
            // Distinct experts, each with one to three tokens.
            let mut ids: Vec<usize> = (0..n_expert).collect();
            for i in (1..n_expert).rev() {
                ids.swap(i, random.below(i + 1));
            }
            ids.truncate(1 + random.below(n_expert));
            let tokens: Vec<Vec<u32>> = ids
                .iter()
                .map(|_| (0..=random.below(3) as u32).collect())
                .collect();
            let n_rows = 3 * ids.len();
            let all = layers[layer].jobs(&vec![(&[][..], 0); n_expert]);
            let jobs = ids.iter().zip(&tokens).enumerate();
            let jobs: Vec<ExpertJob<'_>> = jobs
                .map(|(i, (id, tokens))| ExpertJob {
                    tokens,
                    first_row: 3 * i,
                    ..all[*id]
                })
                .collect();
            let expected = rig.experts(&jobs, &x, n_rows, n_embd).unwrap();
            let (held, others): (Vec<_>, Vec<_>) = jobs
                .iter()
                .zip(&ids)
                .partition(|(_, id)| rig.holds(layer, **id as u16));
            let held: Vec<HeldExpert<'_>> = held
                .iter()
                .map(|(job, id)| HeldExpert {
                    expert: **id as u16,
                    tokens: job.tokens,
                    first_row: job.first_row,
                })
                .collect();
            let mut retain = |expert| match random.below(3) {
                0 => Retain::No,
                1 => Retain::IfFree { layer, expert },
                _ => Retain::Always { layer, expert },
            };
            let others: Vec<ExpertJob<'_>> = others
                .iter()
                .map(|(job, id)| ExpertJob {
                    retain: retain(**id as u16),
                    ..**job
                })
                .collect();
            let found = rig.experts_in_tiers(layer, &held, &others, &x, n_rows, n_embd);
            assert_same_bits(
                &format!("step {step} with {n_slots} slots"),
                &found,
                &expected,
            );
            if n_slots > 0 && b.device_memory().is_some() {
                let kept = others.iter().filter_map(|j| match j.retain {
                    Retain::Always { expert, .. } => Some(expert),
                    _ => None,
                });
                let kept: Vec<u16> = kept.collect();
                let n_held = (0..n_expert as u16)
                    .filter(|e| rig.holds(layer, *e))
                    .count();
                assert!(n_held >= kept.len().min(n_slots));
                if others.len() <= n_slots {
                    assert!(kept.iter().all(|e| rig.holds(layer, *e)), "{kept:?}");
                }
            }
        }
        let absent = (0..n_expert as u16).find(|e| !rig.holds(0, *e));
        if let Some(expert) = absent {
            let job = HeldExpert {
                expert,
                tokens: &[0],
                first_row: 0,
            };
            match rig.held_experts(0, &[job], &x, 1, n_embd) {
                Err(Error::Id { id, .. }) => assert_eq!(id, u64::from(expert)),
                result => panic!("an expert that is not held: {result:?}"),
            }
        }
    }
}

/// Ranks are summed in order, wherever their rows are; no rank at all leaves the shared expert.
pub fn combine_follows_ranks_in_any_row_order<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for (k, n_embd) in [(0, 3), (1, 1), (3, 7), (10, 33)] {
        for n_tokens in [1, 3, 33] {
            let shape = MoeShape {
                n_tokens,
                k,
                n_embd,
            };
            let n_picks = n_tokens * k;
            let weights = values(n_picks, 7);
            let [shared, partial] =
                [(n_tokens, 8), (n_picks, 9)].map(|(n, seed)| values(n * n_embd, seed));
            let gate: Vec<f32> = values(n_tokens, 10).iter().map(|g| 8.0 * g).collect();
            let forward: Vec<u32> = (0..n_picks as u32).collect();
            let mut found = vec![];
            // Forward, backward, and with a row that several ranks share.
            for order in 0..3 {
                let mut rows = forward.clone();
                let mut partial = partial.clone();
                if order == 1 {
                    rows.reverse();
                    let back: Vec<&[f32]> = partial.chunks_exact(n_embd).rev().collect();
                    partial = back.concat();
                }
                if order == 2 {
                    rows.iter_mut().skip(1).step_by(2).for_each(|row| *row = 0);
                }
                let out = rig.combine(shape, &rows, &weights, &partial, &shared, &gate);
                let expected = naive::combine(shape, &rows, &weights, &partial, &shared, &gate);
                assert_close(&format!("combine {shape:?}"), &out, &expected, ELEMENT);
                found.push(out);
            }
            assert_same_bits("combine with rows moved", &found[1], &found[0]);
        }
    }
    // In rank order the large parts cancel before the small one comes; in another they drown it.
    let shape = MoeShape {
        n_tokens: 1,
        k: 3,
        n_embd: 1,
    };
    let out = rig.combine(
        shape,
        &[2, 0, 1],
        &[1.0; 3],
        &[-1e8, 1.0, 1e8],
        &[0.0],
        &[0.0],
    );
    assert_close("combine in rank order", &out, &[1.0], ELEMENT);
}

/// Overlaps, rows past the end and matrices of other shapes are `Shape` errors.
pub fn experts_that_do_not_fit_are_errors<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let x = values(6, 11);
    let (good, other) = (Experts::new(2, 2, 3), Experts::new(2, 2, 5));
    let mut shape_error = |what: &str, jobs: &[ExpertJob<'_>]| {
        // Four rows, in which the buffer's own reserve has no part: it is less than three rows.
        match rig.experts(jobs, &x, 4, 2) {
            Err(Error::Shape { op: "experts", .. }) => {}
            result => panic!("{what}: {result:?}"),
        }
    };
    shape_error("overlap", &good.jobs(&[(&[0, 1], 0), (&[2], 1)]));
    shape_error(
        "overlap in any order",
        &good.jobs(&[(&[2], 1), (&[0, 1], 0)]),
    );
    shape_error("past the end", &good.jobs(&[(&[0, 1, 2], 4)]));
    shape_error("absurd row", &good.jobs(&[(&[0], usize::MAX)]));
    let fitting = good.jobs(&[(&[0], 0)])[0];
    let wrong = other.jobs(&[(&[0], 0)])[0].expert;
    for (what, expert) in [
        (
            "gate",
            ExpertView {
                gate: wrong.gate,
                ..fitting.expert
            },
        ),
        (
            "up",
            ExpertView {
                up: wrong.up,
                ..fitting.expert
            },
        ),
        (
            "down",
            ExpertView {
                down: wrong.down,
                ..fitting.expert
            },
        ),
        (
            "gate for down",
            ExpertView {
                down: fitting.expert.gate,
                ..fitting.expert
            },
        ),
        (
            "down for up",
            ExpertView {
                up: fitting.expert.down,
                ..fitting.expert
            },
        ),
    ] {
        shape_error(what, &[ExpertJob { expert, ..fitting }]);
    }
    // A job without tokens does nothing, wherever it points.
    let idle = good.jobs(&[(&[], usize::MAX), (&[2], 1)]);
    rig.experts(&idle, &x, 4, 2).unwrap();
}

/// Results for [`assert_same_results`](super::assert_same_results).
pub(super) fn results<B: Backend>(b: &B) -> Vec<(String, Vec<f32>)> {
    let mut rig = Rig::new(b);
    let mut all = vec![];
    for n in [1, 71] {
        let (k, n_embd) = (3, 96);
        let experts = Experts::new(6, n_embd, 64);
        let [x, shared] = [12, 13].map(|seed| values(n * n_embd, seed));
        let gates = values(n, 14);
        let choice = Choice::random(n, k, 6);
        let out = choice.run(&mut rig, &experts, &x, n_embd, &shared, &gates, 1, false);
        all.push(("experts and combine".into(), out));
    }
    all
}

fn route<B: Backend>(
    rig: &mut Rig<'_, B>,
    n_expert: usize,
    k: usize,
    logits: &[f32],
) -> Result<Routing> {
    let buffer = rig.up(logits);
    let mut routing = Routing::default();
    routing.reset(logits.len() / n_expert, n_expert, k);
    rig.b.route(&mut rig.rec, &buffer, &mut routing)?;
    Ok(routing)
}

/// Experts with f32 matrices.
struct Experts(Vec<[(Vec<f32>, MatData); 3]>);

impl Experts {
    fn new(n: usize, n_embd: usize, n_ff: usize) -> Self {
        Self::seeded(n, n_embd, n_ff, 0)
    }

    fn seeded(n: usize, n_embd: usize, n_ff: usize, seed: u64) -> Self {
        let matrix = |(n_in, n_out, seed)| {
            let w = values(n_in * n_out, seed);
            let data = MatData::from_f32(n_in, n_out, &w).unwrap();
            (w, data)
        };
        let expert = |e: u64| {
            [
                (n_embd, n_ff, seed + 100 + e),
                (n_embd, n_ff, seed + 200 + e),
                (n_ff, n_embd, seed + 300 + e),
            ]
            .map(matrix)
        };
        Self((0..n as u64).map(expert).collect())
    }

    fn weights(&self, e: usize) -> [&[f32]; 3] {
        let [gate, up, down] = &self.0[e];
        [&gate.0, &up.0, &down.0]
    }

    /// Jobs of the experts from 0 on: tokens and first row.
    fn jobs<'a>(&'a self, lists: &[(&'a [u32], usize)]) -> Vec<ExpertJob<'a>> {
        let job = |([gate, up, down], &(tokens, first_row)): (&'a [(_, MatData); 3], _)| {
            let expert = ExpertView {
                gate: gate.1.view(),
                up: up.1.view(),
                down: down.1.view(),
            };
            ExpertJob {
                expert,
                tokens,
                first_row,
                retain: Retain::No,
            }
        };
        let experts: Vec<&'a [(Vec<f32>, MatData); 3]> = self.0.iter().collect();
        experts.into_iter().zip(lists).map(job).collect()
    }
}

/// `k` distinct experts for each token, with weights.
struct Choice {
    k: usize,
    n_expert: usize,
    ids: Vec<usize>,
    weights: Vec<f32>,
}

impl Choice {
    fn random(n_tokens: usize, k: usize, n_expert: usize) -> Self {
        let mut random = Random(15);
        let mut ids = vec![];
        for _ in 0..n_tokens {
            // The last expert is left out, so that one has an empty token list.
            let mut left: Vec<usize> = (0..n_expert - 1).collect();
            ids.extend((0..k).map(|_| left.swap_remove(random.below(left.len()))));
        }
        Self {
            k,
            n_expert,
            ids,
            weights: values(n_tokens * k, 16),
        }
    }

    /// The choice of some of the tokens.
    fn of(&self, tokens: std::ops::Range<usize>) -> Self {
        let picks = tokens.start * self.k..tokens.end * self.k;
        let (ids, weights) = (
            self.ids[picks.clone()].to_vec(),
            self.weights[picks].to_vec(),
        );
        Self {
            ids,
            weights,
            ..*self
        }
    }

    /// Runs experts in passes of their own and combines.
    #[allow(clippy::too_many_arguments)]
    fn run<B: Backend>(
        &self,
        rig: &mut Rig<'_, B>,
        experts: &Experts,
        x: &[f32],
        n_embd: usize,
        shared: &[f32],
        shared_gate: &[f32],
        n_passes: usize,
        backward: bool,
    ) -> Vec<f32> {
        let mut order: Vec<usize> = (0..self.n_expert).collect();
        if backward {
            order.reverse();
        }
        // Rows of `partial` are filled in the order in which experts come.
        let mut rows = vec![0; self.ids.len()];
        let mut lists = vec![(vec![], 0); self.n_expert];
        let mut next_row = 0;
        for &e in &order {
            lists[e].1 = next_row;
            for (pick, _) in self.ids.iter().enumerate().filter(|(_, id)| **id == e) {
                lists[e].0.push((pick / self.k) as u32);
                rows[pick] = next_row as u32;
                next_row += 1;
            }
        }
        let lists: Vec<(&[u32], usize)> = lists.iter().map(|l| (&l.0[..], l.1)).collect();
        let jobs = experts.jobs(&lists);
        let x = rig.up(x);
        let len = self.ids.len() * n_embd;
        let mut partial = rig.output(len);
        for pass in order.chunks(self.n_expert.div_ceil(n_passes)) {
            let jobs: Vec<ExpertJob<'_>> = pass.iter().map(|e| jobs[*e]).collect();
            rig.b
                .experts(&mut rig.rec, &jobs, &x, &mut partial)
                .unwrap();
        }
        let partial = rig.down(&partial, len);
        let shape = MoeShape {
            n_tokens: shared_gate.len(),
            k: self.k,
            n_embd,
        };
        rig.combine(shape, &rows, &self.weights, &partial, shared, shared_gate)
    }
}
