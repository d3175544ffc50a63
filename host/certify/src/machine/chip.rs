//! Which Neural Engine a chip has: a static table, not a device probe (CERT-05, CERT-06).
//!
//! State: none. Caller: [`super::MachineProfile::new`]. The daemon links no private framework to ask; the suffix `(map)`
//! says so. A chip that the table does not know has no subtype.

/// Chip names as macOS gives them in `machdep.cpu.brand_string`.
const CHIPS: [(&str, &str); 5] = [
    ("Apple M4", "h16(map)"),
    ("Apple M4 Pro", "h16(map)"),
    ("Apple M4 Max", "h16(map)"),
    ("Apple M5", "h16(map)"),
    ("Apple M5 Max", "h17(map)"),
];

/// The subtype of a chip, where the table knows it.
#[must_use]
pub fn ane_subtype(chip: &str) -> Option<&'static str> {
    CHIPS
        .iter()
        .find(|(name, _)| *name == chip)
        .map(|(_, subtype)| *subtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves CERT-05.
    #[test]
    fn only_known_chips_have_a_subtype() {
        for (chip, subtype) in [
            ("Apple M4", Some("h16(map)")),
            ("Apple M4 Pro", Some("h16(map)")),
            ("Apple M4 Max", Some("h16(map)")),
            ("Apple M5", Some("h16(map)")),
            ("Apple M5 Max", Some("h17(map)")),
            ("Apple M5 Pro", None),
            ("Apple M1", None),
            ("Apple M40", None),
            ("apple m4", None),
            ("", None),
            ("AMD EPYC", None),
        ] {
            assert_eq!(ane_subtype(chip), subtype, "{chip}");
        }
    }
}
