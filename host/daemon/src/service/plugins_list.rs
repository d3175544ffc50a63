//! The operation behind `plugins_list`.
