//! Tests of the magic: what is written is read back, and every misfit names its field.

use super::{MAGIC_LEN, MagicError, MagicNote, PluginMagic};

fn bytes(note: &MagicNote) -> Vec<u8> {
    // SAFETY: the note is plain old data without padding, as its asserted size says.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(note).cast::<u8>(), size_of::<MagicNote>()) }.to_vec()
}

fn read(bytes: &[u8]) -> Result<PluginMagic, MagicError> {
    let magic = PluginMagic::parse_note(bytes)?;
    magic.check()?;
    Ok(magic)
}

#[test]
fn a_note_is_read_back_whole() {
    let magic = PluginMagic::new("toy-1", "1.2.3", true);
    let read = read(&bytes(&magic.note())).expect("fits");
    assert!(read == magic);
    assert_eq!(
        (read.id(), read.version(), read.aborts_on_panic()),
        (Some("toy-1"), Some("1.2.3"), true)
    );
    assert!(read.rustc().is_some_and(|text| text.starts_with("rustc ")), "{read:?}");
    assert!(read.target().is_some_and(|text| text.contains('-')), "{read:?}");
}

#[test]
fn each_field_that_does_not_fit_is_named_in_one_line() {
    let good = bytes(&PluginMagic::new("toy", "1.2.3", false).note());
    let swapped = 280_u32.swap_bytes().to_ne_bytes();
    let cases: &[(usize, &[u8], &str)] = &[
        (28, &[32], "pointer_width: plugin 32, host supports 64"),
        (29, &[2], "endian: plugin big, host supports little"),
        (29, &[9], "endian: plugin unknown, host supports little"),
        (
            30,
            &[0],
            "panic_strategy: plugin 0, host supports 1 (unwind) or 2 (abort)",
        ),
        (32, &284_u32.to_ne_bytes(), "struct_len: plugin 284, host supports 280"),
        (32, &swapped, "struct_len: plugin 402718720, host supports 280"),
        (36, &2_u32.to_ne_bytes(), "abi_major: plugin 2, host supports 1"),
        (36, &0_u32.to_ne_bytes(), "abi_major: plugin 0, host supports 1"),
        (
            44,
            b"stabby-72.1.0\0\0\0\0",
            "vendor: plugin stabby-72.1.0, host supports abi_stable-0.11.3",
        ),
        (76, b"To\n", "id: plugin To\\n, host supports 1 to 64 of [a-z0-9-]"),
        (76, b"\xff", "id: plugin ?, host supports 1 to 64 of [a-z0-9-]"),
        (140, b"\0", "plugin magic: version is not UTF-8 text"),
        (12, b"Other", "plugin magic: the note's name is not `Synapse`"),
        (20, b"X", "plugin magic: the first bytes are not `SYNAPSE`"),
        (0, &[9], "plugin magic: the note's header is not that of version 1"),
        (8, &[9], "plugin magic: the note's header is not that of version 1"),
        (4, &[9], "plugin magic: the note's descriptor length is not the magic's"),
    ];
    for (at, patch, message) in cases {
        let mut bad = good.clone();
        bad[*at..at + patch.len()].copy_from_slice(patch);
        assert_eq!(read(&bad).expect_err(message).to_string(), *message);
    }
    let mut newer = good.clone();
    newer[40] = 7;
    assert_eq!(
        read(&newer).map(|magic| magic.abi_minor),
        Ok(7),
        "every minor is accepted"
    );
}

#[test]
fn cut_notes_are_refused_at_every_length() {
    let good = bytes(&PluginMagic::new("toy", "1.2.3", false).note());
    for len in 0..good.len() {
        assert!(
            matches!(PluginMagic::parse_note(&good[..len]), Err(MagicError::Malformed { .. })),
            "{len}"
        );
    }
    assert_eq!(MAGIC_LEN, 280);
}
