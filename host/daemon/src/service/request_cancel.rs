//! The operation behind `request_cancel`.
