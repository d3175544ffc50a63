//! The operation behind `job_cancel`.
