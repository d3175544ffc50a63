//! Golden layout of the ABI, and plugins built elsewhere.
