//! How ggml stores tensors: the block of each type, by its number in the file (`ggml.h`).

/// One tensor type: values a block and bytes a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// The number in the file.
    pub number: u32,
    /// The name that ggml gives it.
    pub name: &'static str,
    /// Values of one block; a row is whole blocks.
    pub block: u64,
    /// Bytes of one block.
    pub bytes: u64,
}

const fn entry(number: u32, name: &'static str, block: u64, bytes: u64) -> TensorType {
    TensorType {
        number,
        name,
        block,
        bytes,
    }
}

const TYPES: [TensorType; 32] = [
    entry(0, "f32", 1, 4),
    entry(1, "f16", 1, 2),
    entry(2, "q4_0", 32, 18),
    entry(3, "q4_1", 32, 20),
    entry(6, "q5_0", 32, 22),
    entry(7, "q5_1", 32, 24),
    entry(8, "q8_0", 32, 34),
    entry(9, "q8_1", 32, 36),
    entry(10, "q2_k", 256, 84),
    entry(11, "q3_k", 256, 110),
    entry(12, "q4_k", 256, 144),
    entry(13, "q5_k", 256, 176),
    entry(14, "q6_k", 256, 210),
    entry(15, "q8_k", 256, 292),
    entry(16, "iq2_xxs", 256, 66),
    entry(17, "iq2_xs", 256, 74),
    entry(18, "iq3_xxs", 256, 98),
    entry(19, "iq1_s", 256, 50),
    entry(20, "iq4_nl", 32, 18),
    entry(21, "iq3_s", 256, 110),
    entry(22, "iq2_s", 256, 82),
    entry(23, "iq4_xs", 256, 136),
    entry(24, "i8", 1, 1),
    entry(25, "i16", 1, 2),
    entry(26, "i32", 1, 4),
    entry(27, "i64", 1, 8),
    entry(28, "f64", 1, 8),
    entry(29, "iq1_m", 256, 56),
    entry(30, "bf16", 1, 2),
    entry(34, "tq1_0", 256, 54),
    entry(35, "tq2_0", 256, 66),
    entry(39, "mxfp4", 32, 17),
];

/// The type of a number, if it is known.
#[must_use]
pub fn of(number: u32) -> Option<TensorType> {
    TYPES.iter().copied().find(|known| known.number == number)
}
