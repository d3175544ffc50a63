//! The zoo of shared data: tiny models of every architecture with float64 oracles, and files that nobody may trust.
//!
//! State: none; it only reads. Callers: tests that need it skip loudly where it is not shared with this clone. A
//! [`Recipe`] becomes an operator's record and row, with digests and sizes taken from the files themselves, so nothing
//! of the zoo is in the shipped catalog.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use synapse_core::digest::sha256;

use super::{repository, skipped};

/// Encoders whose ONNX graph gives hidden states that the record's pooling makes the vector of. Not among them:
/// `embeddinggemma-embed`, whose dense modules are outside of its graph.
pub const ONNX_ENCODERS: [&str; 10] = [
    "bert-embed",
    "bert-embed-cls",
    "xlm-roberta-embed",
    "roberta-embed",
    "distilbert-embed",
    "mpnet-embed",
    "modernbert-embed",
    "nomic-bert-embed",
    "gte-embed",
    "qwen3-embed",
];
/// Encoders that llama.cpp has an architecture for.
pub const GGUF_ENCODERS: [&str; 9] = [
    "bert-embed",
    "bert-embed-cls",
    "xlm-roberta-embed",
    "roberta-embed",
    "embeddinggemma-embed",
    "distilbert-embed",
    "modernbert-embed",
    "nomic-bert-embed",
    "qwen3-embed",
];
/// Cross-encoders with one logit a pair.
pub const CROSS_ENCODERS: [&str; 3] = ["bert-cross-encoder", "xlm-roberta-cross-encoder", "modernbert-reranker"];
/// Generators that llama.cpp has an architecture for.
pub const GENERATORS: [&str; 4] = [
    "llama-generate",
    "llama3rope-generate",
    "qwen3-generate",
    "gemma3-generate",
];

/// The zoo's folder.
pub struct Zoo(PathBuf);

impl Zoo {
    /// Finds it beside the repository; says that `test` is skipped where it is not.
    pub fn find(test: &str) -> Option<Self> {
        let repository = repository();
        let folder = repository.ancestors().map(|folder| folder.join("shared/data/zoo"));
        let found = folder.into_iter().find(|folder| folder.join("README.md").is_file());
        if found.is_none() {
            skipped(test, "shared/data/zoo is not here");
        }
        found.map(Self)
    }

    /// A model's folder, or that of the bad files.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A model's float64 results.
    pub fn oracle(&self, model: &str) -> Value {
        json(&self.folder(model).join("oracle.json"))
    }

    /// Ids of a model's control tokens.
    pub fn control_ids(&self, model: &str) -> Vec<Option<i64>> {
        let tokenizer = json(&self.folder(model).join("tokenizer.json"));
        let added = tokenizer["added_tokens"].as_array().expect("tokens").iter();
        let special = added.filter(|token| token["special"] == true);
        special.map(|token| token["id"].as_i64()).collect()
    }

    /// What the bad files are, and what has to become of each.
    pub fn bad(&self) -> Vec<Value> {
        let manifest = json(&self.folder("bad/manifest.json"));
        manifest["entries"].as_array().expect("entries").clone()
    }

    /// An encoder in one stored form, as `zoo-FORMAT-MODEL`.
    pub fn encoder(&self, model: &str, format: &'static str) -> Recipe {
        let oracle = self.oracle(model);
        let items = oracle["items"].as_array().expect("items").iter();
        let dims = items.filter_map(|item| item["out_f64"].as_array()).map(Vec::len).next();
        let mut recipe = self.model(model, "embed", format);
        recipe.fields = format!(
            "dims = {}\npooling = {}\nnormalize = {}",
            dims.expect("a vector"),
            oracle["pooling"],
            oracle["normalized"]
        );
        if format == "onnx" {
            recipe.layout.push(("modules", "modules.json"));
            recipe.layout.push(("pooling", "1_Pooling/config.json"));
        }
        recipe
    }

    /// A cross-encoder.
    pub fn cross_encoder(&self, model: &str, format: &'static str) -> Recipe {
        let mut recipe = self.model(model, "rerank", format);
        recipe.fields = "score_kind = \"logit\"".to_owned();
        recipe
    }

    /// A generator without its `tokenizer.json`: the host builds one from the GGUF's vocabulary.
    pub fn generator(&self, model: &str) -> Recipe {
        let mut recipe = self.model(model, "generate", "gguf");
        recipe.tokenizer = None;
        recipe.layout.clear();
        recipe
    }

    fn model(&self, model: &str, kind: &'static str, format: &'static str) -> Recipe {
        let oracle = self.oracle(model);
        let config = json(&self.folder(model).join("config.json"));
        let max_tokens = oracle["max_tokens"]
            .as_u64()
            .and_then(|tokens| u32::try_from(tokens).ok());
        Recipe {
            id: format!("zoo-{format}-{model}"),
            kind,
            family: config["model_type"].as_str().expect("a family").to_owned(),
            fields: String::new(),
            folder: self.folder(model),
            tokenizer: Some("tokenizer.json".to_owned()),
            layout: vec![("config", "config.json")],
            format,
            weights: format!("model.{format}"),
            max_tokens: max_tokens.expect("a length"),
        }
    }
}

/// What becomes a record and its one row.
pub struct Recipe {
    /// The model's id.
    pub id: String,
    /// `embed`, `rerank`, `generate`.
    pub kind: &'static str,
    /// The architecture.
    pub family: String,
    /// Further lines of the record.
    pub fields: String,
    /// Where the files lie.
    pub folder: PathBuf,
    /// The tokenizer's path in the folder.
    pub tokenizer: Option<String>,
    /// Files that the host reads.
    pub layout: Vec<(&'static str, &'static str)>,
    /// `onnx` runs on onnxruntime, `gguf` on llama.cpp.
    pub format: &'static str,
    /// The weights' path in the folder.
    pub weights: String,
    /// The context, and the row's bound.
    pub max_tokens: u32,
}

impl Recipe {
    /// Writes the operator's two files.
    pub fn write(&self, catalog: &Path) {
        let pin = |path: &str| {
            let bytes = fs::read(self.folder.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
            format!(
                "path = \"{path}\"\nsha256 = \"{}\"\nsize = {}\n",
                sha256(&bytes),
                bytes.len()
            )
        };
        let tokens = self.max_tokens;
        let mut record = format!(
            "schema = 1\nid = \"{}\"\ntitle = \"of the zoo\"\nfamily = \"{}\"\nkind = \"{}\"\nlicence = \"CC0-1.0\"\n\
             context = {tokens}\nmax_tokens = {tokens}\n{}\n",
            self.id, self.family, self.kind, self.fields
        );
        if let Some(tokenizer) = &self.tokenizer {
            record += &format!("[tokenizer]\n{}", pin(tokenizer));
        }
        for (role, path) in &self.layout {
            record += &format!("[[layout]]\nrole = \"{role}\"\n{}", pin(path));
        }
        record += &format!(
            "[[formats]]\nformat = \"{}\"\nquant = \"f32\"\n[[formats.files]]\nrole = \"weights\"\n{}",
            self.format,
            pin(&self.weights)
        );
        record += "[[sources]]\nkind = \"local\"\n";
        // llama.cpp runs one sequence, whose context is the row's.
        let (engine, batch) = match (self.format, self.kind) {
            ("onnx", _) => ("ort", 64),
            (_, "generate") => ("llama-cpp", 1),
            _ => ("llama-cpp", 64),
        };
        let row = format!(
            "schema = 1\n[[row]]\nmodel = \"{}\"\nengine = \"{engine}\"\nengine_version = \">=0.1, <2\"\n\
             variant = \"f32\"\nformat = \"{}\"\nquant = \"f32\"\ndtype = \"f32\"\nmax_tokens = {tokens}\n\
             max_batch = {batch}\nmax_batch_tokens = {}\nmax_sequences = 1\nflash_attention = {}\n",
            self.id,
            self.format,
            batch * tokens,
            self.kind == "generate"
        );
        fs::write(catalog.join(format!("models/{}.toml", self.id)), record).expect("writes");
        fs::write(catalog.join(format!("envelopes/{}.toml", self.id)), row).expect("writes");
    }
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
