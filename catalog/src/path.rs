//! The rule for paths inside a model folder: relative, `/`-separated, and never out of the folder.
//!
//! State: none. Callers: [`crate::check`] for records, [`crate::layout`] for a model's own `modules.json`. It judges
//! text only; whether the place exists, or is a link, is the store's business.

/// Why `path` could leave its folder or name something unexpected; `Ok` for a plain relative path.
pub(crate) fn safe_relative(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("is empty");
    }
    if path.len() > 1024 {
        return Err("is longer than 1024 bytes");
    }
    if path.starts_with('/') {
        return Err("is absolute");
    }
    if path.chars().any(|c| c == '\\' || c == ':' || c.is_control()) {
        return Err("has a backslash, a colon or a control character");
    }
    for part in path.split('/') {
        match part {
            "" => return Err("has an empty part"),
            "." | ".." => return Err("leaves or repeats its folder with '.' or '..'"),
            long if long.len() > 255 => return Err("has a part longer than 255 bytes"),
            _ => {}
        }
    }
    Ok(())
}
