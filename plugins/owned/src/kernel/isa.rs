//! The instruction sets: which there are, which this CPU has, and one table of entry points for each.
//!
//! Owns the choice made at run time. `SYNAPSE_OWNED_ISA` (`portable`, `avx2`, `avx512`) forces one for tests and
//! measurements. Every kernel of a table is compiled for its instruction set; the generic bodies live in the
//! sibling modules.

use super::attention::{self, Head};
use super::gemm::{self, Gemm};
use super::layer_norm::{self, LayerNorm};
use super::pairs::{self, PairGemm, Rows};
use super::portable::Portable;

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust; every machine.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512F.
    Avx512,
}

/// The entry points of one instruction set. A table exists only for instruction sets that the CPU has, so its
/// functions need no promise about the CPU any more, only about their operands.
pub struct Kernels {
    isa: Isa,
    gemm: unsafe fn(&Gemm),
    prepare_head: unsafe fn(&Head),
    head_rows: unsafe fn(&Head, usize, usize),
    layer_norm: unsafe fn(&LayerNorm),
    rms_norm: unsafe fn(&LayerNorm),
    pairs: Pairs,
}

/// The entry points of the fast mode, which an instruction set may take from another.
#[derive(Clone, Copy)]
struct Pairs {
    quantise: unsafe fn(&Rows),
    gemm: unsafe fn(&PairGemm),
}

macro_rules! pair_entry_points {
    ($table:ident, $lanes:ty $(, $features:literal)?) => {
        const $table: Pairs = {
            $(#[target_feature(enable = $features)])?
            unsafe fn quantise(call: &Rows) {
                // SAFETY: passed on to the caller; the table is given out only where the CPU has the features.
                unsafe { pairs::quantise::<$lanes>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn gemm(call: &PairGemm) {
                // SAFETY: as above.
                unsafe { pairs::gemm::<$lanes>(call) }
            }
            Pairs { quantise, gemm }
        };
    };
}

pair_entry_points!(PORTABLE_PAIRS, Portable);
#[cfg(target_arch = "x86_64")]
pair_entry_points!(AVX2_PAIRS, super::avx2::Avx2, "avx2,fma");
#[cfg(target_arch = "x86_64")]
pair_entry_points!(VNNI_PAIRS, super::avx512::Avx512, "avx512f,avx512vnni,avx2,fma");

macro_rules! entry_points {
    ($table:ident, $isa:expr, $pairs:expr, $lanes:ty $(, $features:literal)?) => {
        static $table: Kernels = {
            $(#[target_feature(enable = $features)])?
            unsafe fn gemm_entry(call: &Gemm) {
                // SAFETY: passed on to the caller; the table is given out only where the CPU has the features.
                unsafe { gemm::gemm::<$lanes>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn prepare_head(head: &Head) {
                // SAFETY: as above.
                unsafe { attention::prepare::<$lanes>(head) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn head_rows(head: &Head, first: usize, rows: usize) {
                // SAFETY: as above.
                unsafe { attention::rows::<$lanes>(head, first, rows) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn layer_norm_entry(call: &LayerNorm) {
                // SAFETY: as above.
                unsafe { layer_norm::layer_norm::<$lanes>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn rms_norm(call: &LayerNorm) {
                // SAFETY: as above.
                unsafe { layer_norm::rms_norm::<$lanes>(call) }
            }
            Kernels {
                isa: $isa,
                gemm: gemm_entry,
                prepare_head,
                head_rows,
                layer_norm: layer_norm_entry,
                rms_norm,
                pairs: $pairs,
            }
        };
    };
}

entry_points!(PORTABLE, Isa::Portable, PORTABLE_PAIRS, Portable);
#[cfg(target_arch = "x86_64")]
entry_points!(AVX2, Isa::Avx2, AVX2_PAIRS, super::avx2::Avx2, "avx2,fma");
#[cfg(target_arch = "x86_64")]
entry_points!(
    AVX512,
    Isa::Avx512,
    AVX2_PAIRS,
    super::avx512::Avx512,
    "avx512f,avx2,fma"
);
/// The same where the CPU multiplies pairs in 512 bits.
#[cfg(target_arch = "x86_64")]
static AVX512_VNNI: Kernels = Kernels {
    pairs: VNNI_PAIRS,
    ..AVX512
};

impl Isa {
    /// The name used by the environment switch, the settings and the benchmark pages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The instruction set of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512]
            .into_iter()
            .find(|isa| isa.name() == name)
    }
}

impl Kernels {
    /// The instruction sets of this CPU, the preferred one last.
    #[must_use]
    pub fn available() -> Vec<&'static Self> {
        #[cfg_attr(
            not(target_arch = "x86_64"),
            expect(unused_mut, reason = "only x86-64 has more than one")
        )]
        let mut tables = vec![&PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                tables.push(&AVX2);
                if is_x86_feature_detected!("avx512f") {
                    let vnni = is_x86_feature_detected!("avx512vnni");
                    tables.push(if vnni { &AVX512_VNNI } else { &AVX512 });
                }
            }
        }
        tables
    }

    /// The table of one instruction set, where the CPU has it.
    #[must_use]
    pub fn of(isa: Isa) -> Option<&'static Self> {
        Self::available().into_iter().find(|table| table.isa == isa)
    }

    /// The preferred table.
    #[must_use]
    pub fn preferred() -> &'static Self {
        Self::available().last().copied().unwrap_or(&PORTABLE)
    }

    /// Which instruction set this is.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Floating-point operations that take about one millisecond on one core of a slow machine with this
    /// instruction set: the unit between two checkpoints.
    #[must_use]
    pub const fn operations_per_millisecond(&self) -> u64 {
        match self.isa {
            Isa::Portable => 500_000,
            Isa::Avx2 | Isa::Avx512 => 40_000_000,
        }
    }

    /// Matrix product.
    ///
    /// # Safety
    /// As [`gemm::gemm`], the instruction set excepted.
    pub unsafe fn gemm(&self, call: &Gemm) {
        // SAFETY: passed on to the caller.
        unsafe { (self.gemm)(call) }
    }

    /// Lays the keys and values of a head out.
    ///
    /// # Safety
    /// As [`attention::prepare`], the instruction set excepted.
    pub unsafe fn prepare_head(&self, head: &Head) {
        // SAFETY: passed on to the caller.
        unsafe { (self.prepare_head)(head) }
    }

    /// Some context rows of a prepared head.
    ///
    /// # Safety
    /// As [`attention::rows`], the instruction set excepted.
    pub unsafe fn head_rows(&self, head: &Head, first: usize, rows: usize) {
        // SAFETY: passed on to the caller.
        unsafe { (self.head_rows)(head, first, rows) }
    }

    /// Layer normalisation.
    ///
    /// # Safety
    /// As [`layer_norm::layer_norm`], the instruction set excepted.
    pub unsafe fn layer_norm(&self, call: &LayerNorm) {
        // SAFETY: passed on to the caller.
        unsafe { (self.layer_norm)(call) }
    }

    /// Root-mean-square normalisation.
    ///
    /// # Safety
    /// As [`layer_norm::rms_norm`], the instruction set excepted.
    pub unsafe fn rms_norm(&self, call: &LayerNorm) {
        // SAFETY: passed on to the caller.
        unsafe { (self.rms_norm)(call) }
    }

    /// Quantises rows for the fast mode.
    ///
    /// # Safety
    /// As [`pairs::quantise`], the instruction set excepted.
    pub unsafe fn quantise(&self, call: &Rows) {
        // SAFETY: passed on to the caller.
        unsafe { (self.pairs.quantise)(call) }
    }

    /// The fast mode's matrix product.
    ///
    /// # Safety
    /// As [`pairs::gemm`], the instruction set excepted.
    pub unsafe fn pair_gemm(&self, call: &PairGemm) {
        // SAFETY: passed on to the caller.
        unsafe { (self.pairs.gemm)(call) }
    }
}
