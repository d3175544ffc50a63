//! The checks that call the library, each in a process of its own.
//!
//! State: none. One file a chapter of the contract; an entry of a file's list names the rules that it covers.

pub(crate) mod call;
pub(crate) mod compute;
pub(crate) mod describe;
pub(crate) mod error;
pub(crate) mod extension;
pub(crate) mod generate;
pub(crate) mod load;
pub(crate) mod manners;
pub(crate) mod own;
