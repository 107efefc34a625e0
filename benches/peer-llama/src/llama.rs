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
use std::ptr::{NonNull, null_mut};

use anyhow::{Context, Result, ensure};
use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

use crate::work::{Peer, Work};

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

/// A model, a context and the tokens' count.
pub(crate) struct Llama {
    model: NonNull<sys::llama_model>,
    context: NonNull<sys::llama_context>,
    n_vocab: usize,
}

impl Llama {
    pub(crate) fn open(work: &Work, options: Options) -> Result<Self> {
        let path = CString::new(work.model.as_os_str().as_bytes())
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

        let n_ctx = u32::try_from(work.n_ctx).context("--ctx is too large")?;
        let n_threads = i32::try_from(work.n_threads).context("--threads is too large")?;
        // SAFETY: no arguments; returns plain data.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = n_ctx;
        params.n_batch = n_ctx;
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
        };
        ensure!(n_vocab > 0, "llama.cpp finds no vocabulary in the model");
        Ok(llama)
    }

    /// Runs a batch in the sequence; the last token's logits are there afterwards.
    fn take_in(&mut self, tokens: &[u32]) -> Result<()> {
        let n_vocab = self.n_vocab;
        let in_range = tokens.iter().all(|id| (*id as usize) < n_vocab);
        ensure!(in_range, "a token is beyond the vocabulary of {n_vocab}");
        let mut ids: Vec<sys::llama_token> = tokens.iter().map(|id| id.cast_signed()).collect();
        let n_tokens = i32::try_from(ids.len())?;
        // SAFETY: the pointer is to so many tokens; the batch does not outlive `ids`.
        let batch = unsafe { sys::llama_batch_get_one(ids.as_mut_ptr(), n_tokens) };
        // SAFETY: the context is alive, and so are the tokens.
        let code = unsafe { sys::llama_decode(self.context.as_ptr(), batch) };
        ensure!(code == 0, "llama.cpp fails at {n_tokens} tokens: {code}");
        // A step is over when its logits can be read.
        // SAFETY: the context is alive.
        unsafe { sys::llama_synchronize(self.context.as_ptr()) };
        Ok(())
    }
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
        // SAFETY: the context is alive; -1 is the last output, null if there is none.
        let logits = unsafe { sys::llama_get_logits_ith(self.context.as_ptr(), -1) };
        ensure!(!logits.is_null(), "llama.cpp has no logits");
        // SAFETY: a row holds a logit for each of the vocabulary. It changes with the next batch,
        // which needs `&mut self`, and that ends this borrow.
        Ok(unsafe { std::slice::from_raw_parts(logits, self.n_vocab) })
    }

    fn about(&self) -> Value {
        // SAFETY: no arguments; a C string that stays until the next call.
        let text = unsafe { sys::llama_print_system_info() };
        // SAFETY: as above, and it is copied here.
        let text = unsafe { CStr::from_ptr(text) };
        json!({ "system_info": text.to_string_lossy().trim() })
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
