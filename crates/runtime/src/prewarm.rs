//! What the first token would pay for otherwise: fresh pages and kernels that never ran.
//!
//! Owns a run of every stage of the model on a dummy token, and the touch of the arena's pages; no
//! session sees any of it. Memory: the state of a sequence of a few tokens, which a session's own
//! exceeds and which is gone before there is one, and one expert's largest part.
//! Invariant: nothing that a later step reads is changed.

use std::time::{Duration, Instant};

use thalweg_backend::{Backend, ExpertJob, Retain};

use crate::{Engine, Result};

/// Tokens of the dummy prompt: more than one, so that prefill's kernels run.
const PROMPT_TOKENS: usize = 8;

impl<B: Backend> Engine<B> {
    /// Touches every arena page and runs every kernel once, for a prompt and for a step; says how
    /// long that took.
    pub(crate) fn prewarm(&mut self) -> Result<Duration> {
        let start = Instant::now();
        self.store.touch_arena();
        let prompt = PROMPT_TOKENS
            .min(self.plan().chunk_tokens)
            .min(self.plan().n_ctx);
        for n_tokens in [prompt, 1] {
            self.dummy_chunk(n_tokens)?;
        }
        // What the dummy tokens left in the staging is what a fresh engine has.
        self.staging = self.model.staging(&self.backend)?;
        Ok(start.elapsed())
    }

    /// Runs `n_tokens` tokens of id 0 through all stages, with experts of zeros.
    fn dummy_chunk(&mut self, n_tokens: usize) -> Result<()> {
        let mut state = self.model.state(&self.backend, n_tokens)?;
        let row_bytes = self.model.spec().rows.as_ref();
        let row_bytes = row_bytes.map_or(0, |r| r.row_bytes * r.hash.rows_per_token());
        let rows = vec![0; n_tokens * row_bytes];
        let Self {
            backend,
            model,
            ws,
            staging,
            ..
        } = self;
        model.embed(backend, ws, &vec![0; n_tokens], &rows)?;
        for (layer, experts) in model.spec().experts.iter().enumerate() {
            model.route(backend, ws, &mut state, staging, layer)?;
            model.shared(backend, ws, layer)?;
            let [gate, up, down] = &experts.parts;
            let longest = [gate, up, down].into_iter().map(|p| p.len_bytes as usize);
            let zeros = vec![0; longest.max().unwrap_or(0)];
            let part = |len_bytes: u64| &zeros[..len_bytes as usize];
            let parts = [gate, up, down].map(|p| part(p.len_bytes));
            let tokens: Vec<u32> = (0..n_tokens as u32).collect();
            let job = |rank: usize| -> Result<ExpertJob<'_>> {
                Ok(ExpertJob {
                    expert: experts.view(parts)?,
                    tokens: &tokens,
                    first_row: rank * n_tokens,
                    retain: Retain::No,
                })
            };
            let jobs = (0..experts.k).map(job).collect::<Result<Vec<_>>>()?;
            backend.experts(&mut ws.rec, &jobs, &ws.input, &mut ws.partial)?;
            let n_rows = (n_tokens * experts.k) as u32;
            let rows: Vec<u32> = (0..n_rows).collect();
            model.combine(backend, ws, layer, &rows)?;
        }
        model.head(backend, ws)?;
        let mut logits = vec![0.0; model.spec().n_vocab];
        model.logits(backend, ws, 0, &mut logits)?;
        Ok(())
    }
}
