//! llama.cpp as a Synapse engine: GGUF embeddings, reranking and generation.
