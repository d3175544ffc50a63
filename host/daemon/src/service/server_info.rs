//! The operation behind `server_info`.
