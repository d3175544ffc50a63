//! The operation behind `job_status`.
