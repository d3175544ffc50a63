//! The rules of a model record.
//!
//! State: none. Caller: [`super::check`]. A value that breaks a rule is replaced by a harmless one and reported, so that
//! the rest is checked too; nothing with a problem leaves the parent module.

use std::collections::{BTreeMap, BTreeSet};

use synapse_core::digest::Sha256Digest;

use super::{Problems, SCHEMA, check_id};
use crate::file::{FormatFile, Kind, Pooling, RecordFile, RoleFile, SourceFile};
use crate::record::{Format, ModelFile, Origin, Record, ReferencesFile, Source, TokenizerFile};

/// The most files of one list.
const MAX_FILES: usize = 1_024;
/// The longest chat template, in bytes: several times the longest that is known.
const MAX_CHAT_TEMPLATE: usize = 64 << 10;
/// Begins the role of a file that an ONNX graph names; the name follows, since files are kept by digest.
const EXTERNAL: &str = "external:";

pub(super) fn record(file: RecordFile, origin: &Origin, found: &mut Problems) -> Record {
    found.expect(file.schema == SCHEMA, "schema", || {
        format!("is {}, this version reads {SCHEMA}", file.schema)
    });
    check_id(&file.id, "id", origin, found);
    found.expect(
        !file.title.trim().is_empty() && file.title.len() <= 200,
        "title",
        || "expected 1 to 200 bytes".into(),
    );
    found.word(&file.family, "family");
    found.expect(is_licence(&file.licence), "licence", || {
        format!("is {:?}, expected an SPDX expression such as Apache-2.0", file.licence)
    });
    let homepage_holds = file.homepage.is_empty() || file.homepage.starts_with("https://");
    found.expect(homepage_holds && file.homepage.len() <= 400, "homepage", || {
        "expected an https:// address".into()
    });
    found.range(file.context, 1 << 24, "context");
    found.range(file.max_tokens, 1 << 24, "max_tokens");
    found.expect(file.max_tokens <= file.context, "max_tokens", || {
        format!("is {}, beyond the model's context of {}", file.max_tokens, file.context)
    });
    let (dims, pooling, normalize) = output(&file, found);
    kind_fields(&file, found);
    for (role, template) in &file.templates {
        let field = format!("templates.{role}");
        found.expect(matches!(role.as_str(), "query" | "document"), &field, || {
            "roles are query and document".into()
        });
        let slots = template.matches("{text}").count();
        found.expect(slots == 1, &field, || {
            format!("holds {{text}} {slots} times, expected once")
        });
        found.expect(template.len() <= 4_096, &field, || "is longer than 4096 bytes".into());
    }
    let ascending = file.dimensions.windows(2).all(|pair| pair[0] < pair[1]);
    let below = file.dimensions.iter().all(|d| (1..dims.max(1)).contains(d));
    found.expect(ascending && below, "dimensions", || {
        format!("expected ascending lengths from 1 to below {dims}")
    });
    let tokenizer = file.tokenizer.map(|tokenizer| {
        found.path(&tokenizer.path, "tokenizer.path");
        found.size(tokenizer.size, "tokenizer.size");
        let sha256 = found.digest(&tokenizer.sha256, "tokenizer.sha256");
        TokenizerFile {
            path: tokenizer.path,
            sha256,
            size: tokenizer.size,
        }
    });
    let references = file.references.map(|references| {
        found.path(&references.path, "references.path");
        found.size(references.size, "references.size");
        ReferencesFile {
            sha256: found.digest(&references.sha256, "references.sha256"),
            path: references.path,
            size: references.size,
        }
    });
    let layout = files(file.layout, "layout", found);
    let kinds: Vec<&'static str> = file.sources.iter().map(kind_of).collect();
    let formats: Vec<Format> = file
        .formats
        .into_iter()
        .enumerate()
        .map(|(i, f)| format(f, i, &kinds, found))
        .collect();
    found.expect(!formats.is_empty(), "formats", || {
        "expected at least one stored form".into()
    });
    let mut seen = BTreeSet::new();
    for (index, format) in formats.iter().enumerate() {
        let fresh = seen.insert((&format.format, &format.quant));
        found.expect(fresh, &format!("formats[{index}]"), || {
            "the same format and quant appear twice".into()
        });
    }
    one_content_per_path(&formats, &layout, tokenizer.as_ref(), found);
    needs_tokenizer(&formats, tokenizer.is_some(), found);
    let sources: Vec<Source> = file
        .sources
        .into_iter()
        .enumerate()
        .map(|(i, s)| source(s, i, origin, found))
        .collect();
    found.expect(!sources.is_empty(), "sources", || "expected at least one source".into());
    Record {
        id: file.id,
        title: file.title,
        family: file.family,
        kind: file.kind,
        licence: file.licence,
        homepage: file.homepage,
        dims,
        context: file.context,
        max_tokens: file.max_tokens,
        pooling,
        normalize,
        output_normalized: file.output_normalized,
        score_kind: file.score_kind,
        chat_template: file.chat_template,
        truncate_default: file.truncate_default,
        templates: file.templates,
        dimensions: file.dimensions,
        tokenizer,
        layout,
        formats,
        sources,
        references,
        origin: origin.clone(),
    }
}

/// The fields that only embedders have.
fn output(file: &RecordFile, found: &mut Problems) -> (u32, Pooling, bool) {
    if file.kind == Kind::Embed {
        for (field, missing) in [
            ("dims", file.dims.is_none()),
            ("pooling", file.pooling.is_none()),
            ("normalize", file.normalize.is_none()),
        ] {
            found.expect(!missing, field, || "missing; an embedding model states it".into());
        }
        found.range(file.dims.unwrap_or(1), 65_536, "dims");
        let contradiction = file.output_normalized && file.normalize == Some(false);
        found.expect(!contradiction, "normalize", || {
            "is false, but output_normalized says the graph does it".into()
        });
    } else {
        for (field, present) in [
            ("dims", file.dims.is_some()),
            ("pooling", file.pooling.is_some()),
            ("normalize", file.normalize.is_some()),
            ("output_normalized", file.output_normalized),
            ("dimensions", !file.dimensions.is_empty()),
        ] {
            found.expect(!present, field, || "only embedding models have it".into());
        }
    }
    (
        file.dims.unwrap_or(0),
        file.pooling.unwrap_or(Pooling::None),
        file.normalize.unwrap_or(false),
    )
}

/// The fields that only rerankers or only generators have.
fn kind_fields(file: &RecordFile, found: &mut Problems) {
    if file.kind == Kind::Rerank {
        found.expect(file.score_kind.is_some(), "score_kind", || {
            "missing; a reranking model states logit, log_odds or probability".into()
        });
    } else {
        found.expect(file.score_kind.is_none(), "score_kind", || {
            "only reranking models have it".into()
        });
    }
    if let Some(template) = &file.chat_template {
        found.expect(file.kind == Kind::Generate, "chat_template", || {
            "only generating models have it".into()
        });
        let bounded = !template.trim().is_empty() && template.len() <= MAX_CHAT_TEMPLATE;
        found.expect(bounded, "chat_template", || {
            format!("is of {} bytes, expected 1 to {MAX_CHAT_TEMPLATE}", template.len())
        });
    }
}

/// A GGUF carries a vocabulary and an engine with a format of its own may carry a tokenizer; the host finds none in
/// `safetensors` and `onnx`, nor beside a GGUF that is not the only form: two forms of one model share one tokenizer.
fn needs_tokenizer(formats: &[Format], stated: bool, found: &mut Problems) {
    let is_ours = |format: &&Format| matches!(format.format.as_str(), "safetensors" | "onnx" | "gguf");
    let needing = formats.iter().filter(is_ours).count();
    let all_gguf = formats.iter().all(|format| format.format == "gguf");
    found.expect(stated || needing == 0 || all_gguf, "tokenizer", || {
        "missing; only a model whose every form is gguf has its tokenizer in the file".into()
    });
}

fn format(file: FormatFile, index: usize, kinds: &[&'static str], found: &mut Problems) -> Format {
    let field = format!("formats[{index}]");
    found.word(&file.format, &format!("{field}.format"));
    found.word(&file.quant, &format!("{field}.quant"));
    let files = files(file.files, &format!("{field}.files"), found);
    let has = |role: &str| {
        files
            .iter()
            .any(|f| f.role == role || f.role.starts_with(&format!("{role}.")))
    };
    found.expect(has("weights"), &format!("{field}.files"), || {
        "no file with the role weights".into()
    });
    // A safetensors file holds tensors and nothing about the architecture.
    let config = file.format != "safetensors" || has("config");
    found.expect(config, &format!("{field}.files"), || {
        "safetensors need a file with the role config".into()
    });
    for (i, listed) in files.iter().enumerate() {
        let holds = file.format == "onnx" || !listed.role.starts_with(EXTERNAL);
        found.expect(holds, &format!("{field}.files[{i}].role"), || {
            format!("is {}, but only onnx forms have external files", listed.role)
        });
    }
    Format {
        sources: form_sources(file.sources, &format!("{field}.sources"), kinds, found),
        format: file.format,
        quant: file.quant,
        files,
    }
}

/// The kinds of source that have a form, in the record's order: those it names, or all.
fn form_sources(named: Option<Vec<String>>, field: &str, kinds: &[&'static str], found: &mut Problems) -> Vec<String> {
    if let Some(named) = &named {
        found.expect(!named.is_empty(), field, || {
            "is empty; leave it out where every source has the form".into()
        });
        let mut seen = BTreeSet::new();
        for kind in named {
            found.expect(kinds.contains(&kind.as_str()), field, || {
                format!("names {kind:?}, but the record's sources are: {}", kinds.join(", "))
            });
            found.expect(seen.insert(kind), field, || format!("names {kind} twice"));
        }
    }
    let takes = |kind: &&&str| {
        named
            .as_ref()
            .is_none_or(|named| named.iter().any(|name| name == **kind))
    };
    let mut seen = BTreeSet::new();
    let once = kinds.iter().filter(takes).filter(|kind| seen.insert(**kind));
    once.map(|kind| (*kind).to_owned()).collect()
}

const fn kind_of(source: &SourceFile) -> &'static str {
    match source {
        SourceFile::Pypi { .. } => "pypi",
        SourceFile::Hf { .. } => "hf",
        SourceFile::Local {} => "local",
        SourceFile::Bundle {} => "bundle",
    }
}

fn files(list: Vec<RoleFile>, field: &str, found: &mut Problems) -> Vec<ModelFile> {
    found.expect(list.len() <= MAX_FILES, field, || {
        format!("{} files, expected at most {MAX_FILES}", list.len())
    });
    let mut roles = BTreeSet::new();
    let mut out = Vec::new();
    for (index, file) in list.into_iter().take(MAX_FILES).enumerate() {
        let at = format!("{field}[{index}]");
        found.expect(is_role(&file.role), &format!("{at}.role"), || {
            format!("is {:?}, expected a-z words, or external: and a file name", file.role)
        });
        found.expect(roles.insert(file.role.clone()), &format!("{at}.role"), || {
            format!("{} appears twice", file.role)
        });
        found.path(&file.path, &format!("{at}.path"));
        found.size(file.size, &format!("{at}.size"));
        let sha256 = found.digest(&file.sha256, &format!("{at}.sha256"));
        out.push(ModelFile {
            role: file.role,
            path: file.path,
            sha256,
            size: file.size,
        });
    }
    out
}

/// A path names one content, however many lists it stands in.
fn one_content_per_path(
    formats: &[Format],
    layout: &[ModelFile],
    tokenizer: Option<&TokenizerFile>,
    found: &mut Problems,
) {
    let mut known: BTreeMap<&str, (Sha256Digest, u64)> = BTreeMap::new();
    let listed = formats
        .iter()
        .flat_map(|f| &f.files)
        .chain(layout)
        .map(|f| (f.path.as_str(), f.sha256, f.size));
    for (path, sha256, size) in listed.chain(tokenizer.map(|t| (t.path.as_str(), t.sha256, t.size))) {
        let before = *known.entry(path).or_insert((sha256, size));
        found.expect(before == (sha256, size), "formats", || {
            format!("{path} is listed with two digests or sizes")
        });
    }
}

fn source(file: SourceFile, index: usize, origin: &Origin, found: &mut Problems) -> Source {
    let field = format!("sources[{index}]");
    match file {
        SourceFile::Pypi {
            package,
            version,
            wheel_sha256,
            wheel_size,
            prefix,
        } => {
            found.word(&package, &format!("{field}.package"));
            found.expect(is_version(&version), &format!("{field}.version"), || {
                format!("is {version:?}, expected an exact version")
            });
            let sha256 = found.digest(&wheel_sha256, &format!("{field}.wheel_sha256"));
            found.size(wheel_size, &format!("{field}.wheel_size"));
            if !prefix.is_empty() {
                let folder = prefix.strip_suffix('/').unwrap_or("");
                found.path(folder, &format!("{field}.prefix"));
            }
            Source::Pypi {
                package,
                version,
                wheel_sha256: sha256,
                wheel_size,
                prefix,
            }
        }
        SourceFile::Hf { repo, revision } => {
            let named = repo
                .split_once('/')
                .is_some_and(|(owner, name)| is_hub_word(owner) && is_hub_word(name));
            found.expect(named, &format!("{field}.repo"), || {
                format!("is {repo:?}, expected OWNER/NAME")
            });
            found.expect(is_hub_word(&revision), &format!("{field}.revision"), || {
                format!("is {revision:?}, expected a branch, a tag or a commit")
            });
            Source::Hf { repo, revision }
        }
        SourceFile::Local {} => Source::Local,
        SourceFile::Bundle {} => {
            found.expect(matches!(origin, Origin::Bundle(_)), &field, || {
                "is of kind \"bundle\", which only a record inside a bundle may have".into()
            });
            Source::Bundle
        }
    }
}

/// Words of `a-z 0-9 _` joined by dots, the first beginning with a letter; or `external:` and a plain file name.
fn is_role(role: &str) -> bool {
    if let Some(name) = role.strip_prefix(EXTERNAL) {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        return (1..=200).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with(['.', '-']);
    }
    let word = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    role.len() <= 64 && role.starts_with(|c: char| c.is_ascii_lowercase()) && role.split('.').all(word)
}

/// The characters of an SPDX expression, and something else than operators and brackets.
fn is_licence(text: &str) -> bool {
    let expression = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+' | b' ' | b'(' | b')'));
    text.len() <= 200 && expression && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '(')
}

/// An exact version as the package index writes it; it reaches pip as part of one argument.
fn is_version(text: &str) -> bool {
    let body = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b'!' | b'_' | b'-'));
    text.len() <= 64 && body && text.starts_with(|c: char| c.is_ascii_digit())
}

/// An owner, a name or a revision of the hub; it reaches a URL as one segment.
fn is_hub_word(text: &str) -> bool {
    let body = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    (1..=96).contains(&text.len())
        && body
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !text.contains("..")
}
