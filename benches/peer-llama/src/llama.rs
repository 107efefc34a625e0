//! llama.cpp as one of the two engines.
//!
//! Owns a model and a context of llama.cpp, and the only unsafe code of this package: the calls
//! across the boundary to C. The model file is mapped; its pages are the page cache's.
//!
//! Invariants
//! 1. `model` and `context` are what llama.cpp returned, not null, and freed once, context first.
//! 2. `llama.cpp` is called from one thread only: the struct is neither `Send` nor `Sync`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use anyhow::{Context, Result, ensure};
use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

use crate::work::Peer;

/// llama.cpp's own default.
const MAX_UBATCH: u32 = 512;

/// What can be chosen about llama.cpp's side.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Options {
    /// llama.cpp keeps the weights as they are in the file. Without this flag it makes copies in an
    /// order that suits its kernels, of types that have such kernels; copies are not file pages,
    /// so they stay in memory
    #[arg(long)]
    pub llama_no_repack: bool,
}

impl Options {
    /// Flags that give a child these options.
    pub(crate) fn flags(self) -> Vec<std::ffi::OsString> {
        let flag = self.llama_no_repack.then(|| "--llama-no-repack".into());
        flag.into_iter().collect()
    }

    pub(crate) fn json(self) -> Value {
        json!({ "repack": !self.llama_no_repack })
    }
}

/// What llama.cpp opens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub model: &'a Path,
    /// Tokens of the longest sequence.
    pub n_ctx: usize,
    /// Tokens that are taken in at once; llama.cpp computes at most 512 of them together.
    pub n_batch: usize,
    pub n_threads: usize,
}

/// A model, a context and the tokens' count.
pub(crate) struct Llama {
    model: NonNull<sys::llama_model>,
    context: NonNull<sys::llama_context>,
    n_vocab: usize,
    n_batch: usize,
}

impl Llama {
    pub(crate) fn open(setup: Setup<'_>, options: Options) -> Result<Self> {
        ensure!(setup.n_batch > 0, "a batch of no tokens");
        let path = CString::new(setup.model.as_os_str().as_bytes())
            .context("the model's path holds a zero byte")?;
        // SAFETY: the callback has the type that is asked for and uses no user data.
        unsafe { sys::llama_log_set(Some(log), null_mut()) };
        // SAFETY: no arguments, and no other call is running.
        unsafe { sys::llama_backend_init() };

        // SAFETY: no arguments; returns plain data.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.n_gpu_layers = 0;
        params.load_mode = sys::LLAMA_LOAD_MODE_MMAP;
        params.use_extra_bufts = !options.llama_no_repack;
        // SAFETY: the path is a C string that outlives the call; params are the defaults with
        // scalars changed.
        let model = unsafe { sys::llama_model_load_from_file(path.as_ptr(), params) };
        let model = NonNull::new(model).context("llama.cpp cannot load the model")?;

        let n_ctx = u32::try_from(setup.n_ctx).context("the context is too large")?;
        let n_batch = u32::try_from(setup.n_batch).context("the batch is too large")?;
        let n_threads = i32::try_from(setup.n_threads).context("--threads is too large")?;
        // SAFETY: no arguments; returns plain data.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = n_ctx;
        params.n_batch = n_batch;
        params.n_ubatch = n_batch.min(MAX_UBATCH);
        params.n_threads = n_threads;
        params.n_threads_batch = n_threads;
        // SAFETY: the model was just loaded; params are the defaults with scalars changed.
        let context = unsafe { sys::llama_init_from_model(model.as_ptr(), params) };
        let Some(context) = NonNull::new(context) else {
            // SAFETY: loaded above, and nothing refers to it.
            unsafe { sys::llama_model_free(model.as_ptr()) };
            anyhow::bail!("llama.cpp cannot make a context");
        };
        // SAFETY: the model is alive; the vocabulary is part of it.
        let vocabulary = unsafe { sys::llama_model_get_vocab(model.as_ptr()) };
        // SAFETY: as above.
        let n_vocab = unsafe { sys::llama_vocab_n_tokens(vocabulary) };
        let n_vocab = usize::try_from(n_vocab).unwrap_or(0);
        // Before the checks, so that what was made is freed whatever they say.
        let llama = Self {
            model,
            context,
            n_vocab,
            n_batch: setup.n_batch,
        };
        ensure!(n_vocab > 0, "llama.cpp finds no vocabulary in the model");
        Ok(llama)
    }

    /// Takes tokens into the sequence; the last one's logits are there afterwards.
    fn take_in(&mut self, tokens: &[u32]) -> Result<()> {
        let n_batch = self.n_batch;
        let mut parts = tokens.chunks(n_batch);
        parts.try_for_each(|part| self.run_batch(part, None))
    }

    /// Takes tokens into the sequence; the logits after each of them, `[n_tokens, n_vocab]`.
    pub(crate) fn logits_of_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut rows = Vec::with_capacity(tokens.len() * self.n_vocab);
        for part in tokens.chunks(self.n_batch) {
            let mut wanted = vec![1; part.len()];
            self.run_batch(part, Some(&mut wanted))?;
            for i in 0..part.len() {
                rows.extend_from_slice(self.row(i32::try_from(i)?)?);
            }
        }
        Ok(rows)
    }

    /// Runs a batch in the sequence. Logits are computed where `wanted`, which is as long as
    /// `tokens`, is not 0, or after the last token.
    fn run_batch(&mut self, tokens: &[u32], wanted: Option<&mut [i8]>) -> Result<()> {
        let n_vocab = self.n_vocab;
        let in_range = tokens.iter().all(|id| (*id as usize) < n_vocab);
        ensure!(in_range, "a token is beyond the vocabulary of {n_vocab}");
        let mut ids: Vec<sys::llama_token> = tokens.iter().map(|id| id.cast_signed()).collect();
        let n_tokens = i32::try_from(ids.len())?;
        // SAFETY: the pointer is to so many tokens; the batch does not outlive `ids`.
        let mut batch = unsafe { sys::llama_batch_get_one(ids.as_mut_ptr(), n_tokens) };
        if let Some(wanted) = wanted {
            ensure!(wanted.len() == ids.len(), "a mark for each token is needed");
            batch.logits = wanted.as_mut_ptr();
        }
        // SAFETY: the context is alive, and so are the tokens and the marks, one for each.
        let code = unsafe { sys::llama_decode(self.context.as_ptr(), batch) };
        ensure!(code == 0, "llama.cpp fails at {n_tokens} tokens: {code}");
        // A step is over when its logits can be read.
        // SAFETY: the context is alive.
        unsafe { sys::llama_synchronize(self.context.as_ptr()) };
        Ok(())
    }

    /// Logits after the token at `index` of the last batch; -1 is its last output.
    fn row(&self, index: i32) -> Result<&[f32]> {
        // SAFETY: the context is alive; null if there is no such output.
        let logits = unsafe { sys::llama_get_logits_ith(self.context.as_ptr(), index) };
        ensure!(!logits.is_null(), "llama.cpp has no logits");
        // SAFETY: a row holds a logit for each of the vocabulary. It changes with the next batch,
        // which needs `&mut self`, and that ends this borrow.
        Ok(unsafe { std::slice::from_raw_parts(logits, self.n_vocab) })
    }

    /// Which instructions llama.cpp was built with and for, feature by feature.
    pub(crate) fn system_info() -> String {
        // SAFETY: no arguments; a C string that stays until the next call.
        let text = unsafe { sys::llama_print_system_info() };
        // SAFETY: as above, and it is copied here.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().trim().to_owned()
    }
}

/// The widest vector instructions that a text of [`Llama::system_info`] names.
pub(crate) fn instruction_set(system_info: &str) -> &'static str {
    let names = [
        ("AVX512", "avx512"),
        ("AVX2", "avx2"),
        ("AVX", "avx"),
        ("SSSE3", "ssse3"),
        ("SSE3", "sse3"),
        ("NEON", "neon"),
    ];
    // "CPU : SSE3 = 1 | AVX = 1 | "
    let is_on = |name: &str| {
        let features = system_info.split(['|', ':']);
        let mut pairs = features.filter_map(|f| f.split_once('='));
        pairs.any(|(key, value)| key.trim() == name && value.trim() == "1")
    };
    let found = names.iter().find(|(feature, _)| is_on(feature));
    found.map_or("none that it names", |(_, name)| name)
}

impl Peer for Llama {
    fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    fn reset(&mut self) -> Result<()> {
        // SAFETY: the context is alive; its memory is part of it.
        let memory = unsafe { sys::llama_get_memory(self.context.as_ptr()) };
        // SAFETY: as above.
        unsafe { sys::llama_memory_clear(memory, true) };
        Ok(())
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
        self.take_in(tokens)
    }

    fn decode(&mut self, token: u32) -> Result<()> {
        self.take_in(&[token])
    }

    fn logits(&self) -> Result<&[f32]> {
        self.row(-1)
    }

    fn about(&self) -> Value {
        json!({ "system_info": Self::system_info() })
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        // SAFETY: invariant 1.
        unsafe { sys::llama_free(self.context.as_ptr()) };
        // SAFETY: invariant 1.
        unsafe { sys::llama_model_free(self.model.as_ptr()) };
    }
}

/// Passes on what went wrong, and drops the rest of llama.cpp's log.
unsafe extern "C" fn log(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if level == sys::GGML_LOG_LEVEL_ERROR && !text.is_null() {
        // SAFETY: llama.cpp passes a C string that is valid during the call.
        let text = unsafe { CStr::from_ptr(text) };
        eprint!("llama.cpp: {}", text.to_string_lossy());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_instruction_set_is_found_and_what_is_off_is_not() {
        let built = "CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX2 = 1 | OPENMP = 1 |";
        assert_eq!(instruction_set(built), "avx2");
        let wider = "CPU : AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 1 |";
        assert_eq!(instruction_set(wider), "avx512");
        assert_eq!(
            instruction_set("CPU : AVX512_VNNI = 1 | AVX = 0 | SSE3 = 1 |"),
            "sse3"
        );
        assert_eq!(instruction_set("CPU : OPENMP = 1 |"), "none that it names");
    }
}
