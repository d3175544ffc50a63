//! The operation behind `job_list`.
