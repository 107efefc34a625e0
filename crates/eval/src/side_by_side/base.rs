//! A model against a reference whose log-probabilities lie in a file.
//!
//! Owns the walk over file and windows together. Memory: a session and one row of the file.

use std::io::Read;
use std::ops::ControlFlow;

use thalweg_runtime::{Backend, Engine, Observer};

use super::{Place, Progress, Side, pieces};
use crate::base_logits::BaseReader;
use crate::metrics::WindowSums;
use crate::{Error, Result, Window, WindowSet};

/// Sums of every window of `set`, which are the chunks of `base`
/// ([`BaseHeader::windows`](crate::base_logits::BaseHeader::windows)), with the file's rows as the
/// reference. `progress` is told now and then, and may end it.
///
/// # Errors
/// [`Error::Vocabulary`]; [`Error::AtToken`] around what a row is refused for;
/// [`Error::Interrupted`]; [`Error::Runtime`].
///
/// # Cost
/// The model takes in each window once; the file is read once.
pub fn against_base<R: Read, B: Backend>(
    base: &mut BaseReader<R>,
    test: &mut Engine<B>,
    set: &WindowSet,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Vec<WindowSums>> {
    let n_vocab = base.header().n_vocab();
    if n_vocab != test.spec().n_vocab {
        return Err(Error::Vocabulary {
            reference: n_vocab,
            test: test.spec().n_vocab,
        });
    }
    let stride = test.plan().chunk_tokens.max(1);
    let mut side = Side::new(test)?;
    let mut now = Progress {
        n_done: 0,
        n_total: set.n_fed(),
        n_scored: 0,
        kld: None,
    };
    let (mut all, mut kld) = (Vec::with_capacity(set.windows().len()), 0.0);
    for (index, window) in set.windows().iter().enumerate() {
        side.reset()?;
        let place = Place {
            window: index,
            domain: &set.domains()[window.domain()],
        };
        let mut sums = WindowSums::new(window.domain());
        for range in pieces(window, stride) {
            let mut compared = Compare {
                base: &mut *base,
                window,
                is_wanted: range.end >= window.scored().start,
                place: &place,
                sums: &mut sums,
                failed: None,
            };
            side.take(window, range.clone(), &mut compared)?;
            if let Some(error) = compared.failed {
                return Err(error);
            }
            now.n_done += range.len();
            now.n_scored += match range.end >= window.scored().start {
                true => range.len() as u64,
                false => 0,
            };
            now.kld = (now.n_scored > 0).then(|| (kld + sums.kld) / now.n_scored as f64);
            if progress(now).is_break() && now.n_done < now.n_total {
                return Err(Error::Interrupted {
                    n_done: now.n_done,
                    n_total: now.n_total,
                });
            }
        }
        kld += sums.kld;
        all.push(sums);
    }
    Ok(all)
}

/// Compares logits with the file's next row.
struct Compare<'a, R> {
    base: &'a mut BaseReader<R>,
    window: &'a Window,
    is_wanted: bool,
    place: &'a Place<'a>,
    sums: &'a mut WindowSums,
    failed: Option<Error>,
}

impl<R: Read> Compare<'_, R> {
    fn compare(&mut self, position: usize, logits: &[f32]) -> Result<()> {
        let n_rows = self.base.header().rows().len() * self.base.header().n_chunks();
        let row = self.base.next_row()?.ok_or(Error::WrongCount {
            what: "rows of logits in the file",
            expected: n_rows + 1,
            found: n_rows,
        })?;
        let at = (row.chunk, row.position);
        if at != (self.place.window, position) {
            return Err(Error::NoSuch {
                what: "row of the file at position",
                found: position as u64,
                limit: at.1 as u64,
            });
        }
        let token = self.window.tokens()[position + 1];
        self.sums.push(position + 1, row.score(logits, token)?)
    }
}

impl<R: Read> Observer for Compare<'_, R> {
    fn wants_logits(&self, _: usize) -> bool {
        self.is_wanted && self.failed.is_none()
    }

    fn on_logits(&mut self, position: usize, logits: &[f32]) {
        if let Err(source) = self.compare(position, logits) {
            self.failed = Some(Error::AtToken {
                window: self.place.window,
                position: position + 1,
                domain: self.place.domain.to_owned(),
                source: Box::new(source),
            });
        }
    }
}
