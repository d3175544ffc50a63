//! Plans driven to their verdicts: by hand-made engines, one deviation each, and by the reference engine in this process.
//!
//! | file | engines |
//! |---|---|
//! | `hand.rs` | functions from text to numbers, to which a test adds one deviation |
//! | `embed.rs`, `kinds.rs` | what each deviation of those does to each gate |
//! | `layout.rs` | which calls are made |
//! | `toy.rs` | plugins/reference with its fault modes, against references of its Python script |
//! | `oracle.rs` | no engine: the shipped MiniLM references against an oracle that is not ours |

mod embed;
mod hand;
mod kinds;
mod layout;
mod oracle;
mod toy;
