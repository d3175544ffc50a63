//! The rules of an envelope row, as far as a row alone can break them.
//!
//! State: none. Caller: [`super::check_envelopes`]. Whether the model exists is the catalog's question.

use synapse_core::fingerprint::EnvelopeBounds;

use super::{Problems, check_id};
use crate::file::RowFile;
use crate::record::{EnvelopeRow, Origin};

pub(super) fn row(file: RowFile, field: &str, origin: &Origin, found: &mut Problems) -> Option<EnvelopeRow> {
    let at = |name: &str| format!("{field}.{name}");
    check_id(&file.model, &at("model"), origin, found);
    found.word(&file.engine, &at("engine"));
    let words = [
        ("variant", &file.variant),
        ("format", &file.format),
        ("quant", &file.quant),
        ("dtype", &file.dtype),
    ];
    for (name, text) in words {
        found.word(text, &at(name));
    }
    found.range(file.max_tokens, 1 << 24, &at("max_tokens"));
    found.range(file.max_batch, 1 << 16, &at("max_batch"));
    found.range(file.max_batch_tokens, 1 << 24, &at("max_batch_tokens"));
    found.range(file.max_sequences, file.max_batch.max(1), &at("max_sequences"));
    found.expect(
        file.max_tokens <= file.max_batch_tokens,
        &at("max_batch_tokens"),
        || {
            format!(
                "is {}, too small for one item of max_tokens, {}",
                file.max_batch_tokens, file.max_tokens
            )
        },
    );
    let engine_version = match semver::VersionReq::parse(&file.engine_version) {
        Ok(range) => range,
        Err(error) => {
            found.add(
                at("engine_version"),
                format!("is {:?}, expected a semver range: {error}", file.engine_version),
            );
            return None;
        }
    };
    Some(EnvelopeRow {
        model: file.model,
        engine: file.engine,
        engine_version,
        variant: file.variant,
        format: file.format,
        quant: file.quant,
        dtype: file.dtype,
        bounds: EnvelopeBounds {
            max_tokens: file.max_tokens,
            max_batch: file.max_batch,
            max_batch_tokens: file.max_batch_tokens,
            max_sequences: file.max_sequences,
        },
        flash_attention: file.flash_attention,
        origin: origin.clone(),
    })
}
