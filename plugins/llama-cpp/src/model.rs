//! Loading a GGUF file, and what it says of itself.
//!
//! Owns nothing beyond the load. Callers: `encode`, `generate`. The host has checked the header with bounds; what
//! llama.cpp refuses beyond that is an error here.

use std::ffi::{CStr, CString};

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use synapse_plugin_sdk::prelude::*;

use crate::backend::backend;
use crate::log;

/// A loaded file.
#[derive(Debug)]
pub struct File {
    /// llama.cpp's model.
    pub model: LlamaModel,
    /// `general.architecture`, for example `bert`.
    pub architecture: String,
    /// The file's bytes, which are mapped while the model is loaded.
    pub bytes: u64,
}

/// Loads the artifact's weights.
///
/// # Errors
/// ARTIFACT_INVALID when llama.cpp refuses the file or the file does not say for how many tokens it was made;
/// CONFIG_INVALID when that is fewer than asked for; CANCELLED.
pub fn load(call: &Call<'_>, artifact: Artifact<'_>, config: RuntimeConfig<'_>) -> Result<File, Error> {
    let file = artifact.file("weights")?;
    let model = read(call, &file.path, file.size)?;
    let architecture = model.meta_val_str("general.architecture").unwrap_or_default();
    // Not llama.cpp's own number: a file may say 2^32 - 1, which is negative there.
    let key = format!("{architecture}.context_length");
    let made_for: u64 = model
        .meta_val_str(&key)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Error::artifact_invalid(format!("the file has no number under `{key}`")))?;
    if u64::from(config.max_tokens) > made_for {
        let asked = config.max_tokens;
        return Err(Error::config_invalid(format!(
            "max_tokens {asked}, but `{key}` is {made_for}: the model was made for no longer texts"
        )));
    }
    Ok(File {
        model,
        architecture,
        bytes: file.size,
    })
}

/// Reads the weights; the host hears of the bytes of the file that are done.
fn read(call: &Call<'_>, path: &str, size: u64) -> Result<LlamaModel, Error> {
    let layers = if cfg!(any(feature = "cuda", feature = "vulkan")) {
        u32::MAX >> 1
    } else {
        0
    };
    // The crate wants a callback that borrows nothing; this one is dropped with `params`, before `call` ends.
    let teller = std::ptr::from_ref(call).cast::<Call<'static>>();
    let mut told = 0;
    let progress = move |part: f32| {
        // SAFETY: llama.cpp calls this on the loading thread during `load_from_file`, while `call` is borrowed.
        let call = unsafe { &*teller };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a part of 1 becomes bytes of a file; a value that is none saturates"
        )]
        let done = ((f64::from(part) * size as f64) as u64).min(size);
        if done <= told {
            return !call.cancelled();
        }
        told = done;
        call.checkpoint(done, size).is_ok()
    };
    // The crate takes a missing file for a mistake of its caller's.
    std::fs::File::open(path).map_err(|error| Error::artifact_invalid(format!("cannot read {path}: {error}")))?;
    let params = LlamaModelParams::default()
        .with_n_gpu_layers(layers)
        .with_progress_callback(progress);
    log::clear();
    LlamaModel::load_from_file(backend()?, path, &params).map_err(|_| {
        if call.cancelled() {
            return Error::cancelled();
        }
        let complaint = log::complaint();
        Error::artifact_invalid(format!("llama.cpp refuses the file: {complaint}"))
    })
}

/// Whether a GGUF file has a tensor. Reads the header only; a file that cannot be read has none.
#[must_use]
pub fn has_tensor(path: &str, name: &CStr) -> bool {
    let Ok(path) = CString::new(path) else {
        return false;
    };
    let params = llama_cpp_sys_2::gguf_init_params {
        no_alloc: true,
        ctx: std::ptr::null_mut(),
    };
    // SAFETY: the path ends in zero; the header that it gives is ours, asked once and freed.
    unsafe {
        let header = llama_cpp_sys_2::gguf_init_from_file(path.as_ptr(), params);
        if header.is_null() {
            return false;
        }
        let found = llama_cpp_sys_2::gguf_find_tensor(header, name.as_ptr()) >= 0;
        llama_cpp_sys_2::gguf_free(header);
        found
    }
}
