//! Two models on the same windows in one pass: no logits leave memory, only sums are kept.
//!
//! Owns the order of work and the logits of a few positions at a time. Does not own the engines nor
//! the budget that they share. Memory: a session of each engine, and
//! [`SideBySide::logits_bytes`]. Invariants: 1. the result does not depend on how many positions go
//! at a time, nor on either engine's budget; 2. an engine whose routing depends on what is resident
//! takes scored tokens in one by one, as it would generate them.

mod base;

use std::ops::ControlFlow;

pub use base::against_base;
use thalweg_runtime::{Backend, CpuBackend, Engine, Observer, Session};

use crate::metrics::{WindowSums, score};
use crate::{Error, Result, Window, WindowSet};

/// Two engines that take turns.
///
/// The reference takes in some positions and leaves their logits, then the test takes in the same
/// positions and each row is compared as it arrives.
#[derive(Debug)]
pub struct SideBySide<'e, R: Backend = CpuBackend, T: Backend = CpuBackend> {
    reference: Side<'e, R>,
    test: Side<'e, T>,
    n_vocab: usize,
    /// Positions at a time.
    stride: usize,
    /// The reference's logits, `[stride, n_vocab]`.
    rows: Vec<f32>,
}

/// How far a comparison is.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Tokens that both models have taken in.
    pub n_done: usize,
    /// Tokens of all windows.
    pub n_total: usize,
    /// Tokens scored so far.
    pub n_scored: u64,
    /// Mean divergence of them; none at the beginning.
    pub kld: Option<f64>,
}

impl<'e, R: Backend, T: Backend> SideBySide<'e, R, T> {
    /// Takes a session of each engine and at most `max_logits_bytes` for logits, but at least what
    /// one position needs.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] for models whose tokens differ in number; [`Error::Runtime`] when a
    /// session cannot be had.
    pub fn new(
        reference: &'e mut Engine<R>,
        test: &'e mut Engine<T>,
        max_logits_bytes: usize,
    ) -> Result<Self> {
        let n_vocab = reference.spec().n_vocab;
        if n_vocab != test.spec().n_vocab {
            return Err(Error::Vocabulary {
                reference: n_vocab,
                test: test.spec().n_vocab,
            });
        }
        let stride = positions_at_a_time(max_logits_bytes, n_vocab);
        Ok(Self {
            reference: Side::new(reference)?,
            test: Side::new(test)?,
            n_vocab,
            stride,
            rows: vec![0.0; stride * n_vocab],
        })
    }

    /// Bytes of logits that are held, beside what the engines have.
    #[must_use]
    pub fn logits_bytes(&self) -> usize {
        self.rows.len() * size_of::<f32>()
    }

    /// Sums of every window, in their order. `progress` is told now and then, and may end it.
    ///
    /// Where routing depends on what is resident, the state of an arena goes on from one window to
    /// the next, so that the order of windows counts.
    ///
    /// # Errors
    /// [`Error::AtToken`] around what a pair of rows is refused for; [`Error::Interrupted`];
    /// [`Error::Runtime`] when an engine fails, also for a window that its context cannot hold.
    ///
    /// # Cost
    /// Each model takes in each window once. A reference of streamed experts reads fewer of them the
    /// more positions go at a time.
    pub fn run(
        &mut self,
        set: &WindowSet,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Vec<WindowSums>> {
        self.run_with(set, progress, &mut |_| Ok(()))
    }

    /// As [`run`](Self::run), and hands on each row of the reference's logits that is compared,
    /// `[n_vocab]`, in order.
    ///
    /// # Errors
    /// As [`run`](Self::run), and whatever `on_reference` returns.
    pub fn run_with(
        &mut self,
        set: &WindowSet,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
        on_reference: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<Vec<WindowSums>> {
        let mut told = Progress {
            n_done: 0,
            n_total: set.n_fed(),
            n_scored: 0,
            kld: None,
        };
        let (mut all, mut kld) = (Vec::with_capacity(set.windows().len()), 0.0);
        for (index, window) in set.windows().iter().enumerate() {
            let mut sums = WindowSums::new(window.domain());
            let place = Place {
                window: index,
                domain: &set.domains()[window.domain()],
            };
            self.reference.reset()?;
            self.test.reset()?;
            for range in pieces(window, self.stride) {
                let n_rows = self.piece(window, range.clone(), &mut sums, &place)?;
                for row in self.rows.chunks_exact(self.n_vocab).take(n_rows) {
                    on_reference(row)?;
                }
                told.n_done += range.len();
                let n_scored = told.n_scored + sums.n_tokens;
                let mean = (n_scored > 0).then(|| (kld + sums.kld) / n_scored as f64);
                let now = Progress {
                    n_scored,
                    kld: mean,
                    ..told
                };
                if progress(now).is_break() && now.n_done < now.n_total {
                    return Err(Error::Interrupted {
                        n_done: now.n_done,
                        n_total: now.n_total,
                    });
                }
            }
            told.n_scored += sums.n_tokens;
            kld += sums.kld;
            all.push(sums);
        }
        Ok(all)
    }

    /// Positions that both models take in; those from which a scored token is predicted are
    /// compared. Says how many rows there were.
    fn piece(
        &mut self,
        window: &Window,
        range: std::ops::Range<usize>,
        sums: &mut WindowSums,
        place: &Place<'_>,
    ) -> Result<usize> {
        let mut kept = Keep {
            first: range.start,
            is_wanted: range.end >= window.scored().start,
            rows: &mut self.rows,
            n_vocab: self.n_vocab,
            n_kept: 0,
        };
        let expected = if kept.is_wanted { range.len() } else { 0 };
        self.reference.take(window, range.clone(), &mut kept)?;
        let n_kept = kept.n_kept;
        let mut compared = Compare {
            first: range.start,
            n_rows: expected,
            rows: &self.rows,
            n_vocab: self.n_vocab,
            window,
            place,
            sums,
            n_compared: 0,
            failed: None,
        };
        self.test.take(window, range, &mut compared)?;
        if let Some(error) = compared.failed {
            return Err(error);
        }
        for found in [n_kept, compared.n_compared] {
            if found != expected {
                return Err(Error::WrongCount {
                    what: "rows of logits of an engine",
                    expected,
                    found,
                });
            }
        }
        Ok(expected)
    }
}

/// Positions whose logits fit into so many bytes, at least one.
fn positions_at_a_time(bytes: usize, n_vocab: usize) -> usize {
    (bytes / (n_vocab * size_of::<f32>()).max(1)).max(1)
}

/// What both models take in at a time: the context, of whose logits none is wanted, then so many
/// positions each from which a scored token is predicted.
fn pieces(window: &Window, stride: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let (first, end) = (window.scored().start - 1, window.scored().end - 1);
    let context = (first > 0).then_some(0..first);
    let starts = (first..end).step_by(stride);
    context
        .into_iter()
        .chain(starts.map(move |start| start..(start + stride).min(end)))
}

/// An engine and its sequence.
#[derive(Debug)]
struct Side<'e, B: Backend> {
    engine: &'e mut Engine<B>,
    session: Session<B>,
}

impl<'e, B: Backend> Side<'e, B> {
    fn new(engine: &'e mut Engine<B>) -> Result<Self> {
        let session = engine.session()?;
        Ok(Self { engine, session })
    }

    fn reset(&mut self) -> Result<()> {
        Ok(self.engine.reset(&mut self.session)?)
    }

    /// Takes in a window's tokens at `range`, which follow those that it has.
    fn take(
        &mut self,
        window: &Window,
        range: std::ops::Range<usize>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let mut rest = range.clone();
        if self.engine.is_biased() {
            // Up to the first scored token it is a prompt, and the others are what would have been
            // generated.
            let prompt_end = window.scored().start.clamp(range.start, range.end);
            rest = range.start..prompt_end;
        }
        if !rest.is_empty() {
            let tokens = &window.tokens()[rest.clone()];
            self.engine.prefill(&mut self.session, tokens, observer)?;
        }
        for &token in &window.tokens()[rest.end..range.end] {
            self.engine
                .decode_observed(&mut self.session, token, observer)?;
        }
        Ok(())
    }
}

/// Which window something happens in.
struct Place<'a> {
    window: usize,
    domain: &'a str,
}

/// Keeps the logits of a piece.
struct Keep<'a> {
    first: usize,
    is_wanted: bool,
    rows: &'a mut [f32],
    n_vocab: usize,
    n_kept: usize,
}

impl Observer for Keep<'_> {
    fn wants_logits(&self, _: usize) -> bool {
        self.is_wanted
    }

    fn on_logits(&mut self, position: usize, logits: &[f32]) {
        let row = (position - self.first) * self.n_vocab;
        if let Some(place) = self.rows.get_mut(row..row + self.n_vocab) {
            place.copy_from_slice(logits);
            self.n_kept += 1;
        }
    }
}

/// Compares the logits of a piece with those kept.
struct Compare<'a> {
    first: usize,
    /// Positions of the piece that are compared: all or none.
    n_rows: usize,
    rows: &'a [f32],
    n_vocab: usize,
    window: &'a Window,
    place: &'a Place<'a>,
    sums: &'a mut WindowSums,
    n_compared: usize,
    failed: Option<Error>,
}

impl Observer for Compare<'_> {
    fn wants_logits(&self, _: usize) -> bool {
        self.n_rows > 0 && self.failed.is_none()
    }

    fn on_logits(&mut self, position: usize, logits: &[f32]) {
        let row = (position - self.first) * self.n_vocab;
        let Some(reference) = self.rows.get(row..row + self.n_vocab) else {
            return;
        };
        // The token that the logits predict; it is there, since the last scored one is not fed.
        let Some(&token) = self.window.tokens().get(position + 1) else {
            return;
        };
        let scored = score(reference, logits, token);
        let pushed = scored.and_then(|score| self.sums.push(position + 1, score));
        match pushed {
            Ok(()) => self.n_compared += 1,
            Err(source) => {
                self.failed = Some(Error::AtToken {
                    window: self.place.window,
                    position: position + 1,
                    domain: self.place.domain.to_owned(),
                    source: Box::new(source),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scored_token_is_predicted_once() {
        let window = |n: u32, scored| Window::new(0, (0..n).collect(), scored).unwrap();
        let found = |window: &Window, stride| pieces(window, stride).collect::<Vec<_>>();
        // The last scored token is 8: it is predicted from 7 and never taken in.
        assert_eq!(found(&window(10, 4..9), 2), [0..3, 3..5, 5..7, 7..8]);
        assert_eq!(found(&window(10, 4..9), 100), [0..3, 3..8]);
        assert_eq!(found(&window(10, 1..3), 1), [0..1, 1..2]);
        for n in [1, 2, 5, 7] {
            let window = window(10, 3..10);
            let all = pieces(&window, n).map(|p| p.len()).sum::<usize>();
            assert_eq!(all, window.fed().len());
        }
    }

    #[test]
    fn at_least_one_position_goes_at_a_time() {
        assert_eq!(positions_at_a_time(0, 1000), 1);
        assert_eq!(positions_at_a_time(12_000, 1000), 3);
        assert_eq!(positions_at_a_time(12_000, 0), 12_000);
    }
}
