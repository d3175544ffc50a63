//! The operation behind `models_list`.
