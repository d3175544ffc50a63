//! What the kernels reach: floating-point operations a second of CPU time, beside the peak of fused multiply-adds.
//!
//! Usage: `cargo run --release -p synapse-owned --example kernels [ISA]`. The shapes are those of all-MiniLM-L6-v2.
//! Times are the thread's CPU time (Linux), so that what else runs on the machine hardly counts; run it pinned to one
//! CPU. Owns its buffers; knows nothing of models.

use std::io::Write;

use synapse_owned::kernel::attention::{self, Head, Span};
use synapse_owned::kernel::buffer::{Arena, Buffer};
use synapse_owned::kernel::gemm::{Epilogue, Gemm};
use synapse_owned::kernel::isa::{Isa, Kernels};
use synapse_owned::kernel::lanes::LANES;
use synapse_owned::kernel::layer_norm::LayerNorm;
use synapse_owned::kernel::packed::{Arithmetic, PackedLinear, Panels};

/// Seconds of CPU time of this thread.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos: f64 = text
        .split(' ')
        .next()
        .and_then(|nanos| nanos.parse().ok())
        .unwrap_or(0.0);
    nanos / 1e9
}

/// The best of a few rates: operations a second, in billions.
fn rate(operations: f64, mut work: impl FnMut()) -> f64 {
    let mut best = 0.0_f64;
    for _ in 0..5 {
        let start = cpu_seconds();
        let mut runs = 0.0;
        while cpu_seconds() - start < 0.1 {
            for _ in 0..4 {
                work();
            }
            runs += 4.0;
        }
        best = best.max(runs * operations / (cpu_seconds() - start) / 1e9);
    }
    best
}

fn filled(len: usize) -> Result<Buffer, synapse_owned::kernel::buffer::OutOfMemory> {
    let mut buffer = Buffer::zeroed(len)?;
    let mut state = 1_u32;
    for value in buffer.values_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *value = f32::from(u16::try_from(state >> 17).unwrap_or(0)) / 32_768.0 - 0.5;
    }
    Ok(buffer)
}

/// A product that stays in the registers and the first-level cache: the peak of this code.
const PEAK: (&str, usize, usize, usize) = ("a tile that stays in the first-level cache", 12, 128, 32);

#[expect(clippy::cast_precision_loss, reason = "sizes are small")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kernels = match std::env::args().nth(1) {
        None => Kernels::preferred(),
        Some(name) => Isa::by_name(&name)
            .and_then(Kernels::of)
            .ok_or("no such instruction set here")?,
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", kernels.isa().name())?;
    let shapes = [
        PEAK,
        ("qkv, 96 rows", 96, 384, 1_152),
        ("attention output, 96 rows", 96, 384, 384),
        ("up, 96 rows", 96, 384, 1_536),
        ("down, 96 rows", 96, 1_536, 384),
        ("up, 16 rows", 16, 384, 1_536),
        ("down, 16 rows", 16, 1_536, 384),
        ("scores, 12 rows of 256 tokens", 12, 32, 256),
        ("context, 12 rows of 256 tokens", 12, 256, 32),
    ];
    for (name, rows, k, columns) in shapes {
        let layer = PackedLinear::zeroed(&mut Arena::default(), (k, columns), Arithmetic::F32)?;
        let Panels::Floats(panels) = layer.panels() else {
            return Err("the layer is of floats".into());
        };
        let a = filled(rows * k)?;
        let mut result = Buffer::zeroed(rows * columns)?;
        let operations = 2.0 * (rows * k * columns) as f64;
        for epilogue in [Epilogue::None, Epilogue::Gelu] {
            if matches!(epilogue, Epilogue::Gelu) && !name.starts_with("up") {
                continue;
            }
            let call = Gemm {
                a: a.values().as_ptr(),
                a_stride: k,
                rows,
                k,
                panels: panels.values().as_ptr(),
                panel_stride: k * LANES,
                panel_count: columns / LANES,
                bias: std::ptr::null(),
                out: result.values_mut().as_mut_ptr(),
                out_stride: columns,
                epilogue,
            };
            // SAFETY: every buffer has the size that the call states.
            let found = rate(operations, || unsafe { kernels.gemm(&call) });
            let after = if matches!(epilogue, Epilogue::Gelu) {
                " and GELU"
            } else {
                ""
            };
            writeln!(out, "{found:8.1} GF/s  {name}{after}")?;
        }
    }
    let (tokens, width) = (256, 32);
    let mut qkv = filled(tokens * 3 * width)?;
    let mut keys = filled(attention::key_panel_len(tokens, width))?;
    let mut values = filled(attention::value_panel_len(tokens, width))?;
    let mut scores = filled(attention::score_len(tokens))?;
    let mut context = filled(tokens * width)?;
    let q = qkv.values_mut().as_mut_ptr();
    let head = Head {
        q,
        k: q.wrapping_add(width),
        v: q.wrapping_add(2 * width),
        stride: 3 * width,
        tokens,
        width,
        span: Span::ALL,
        distance_bias: std::ptr::null(),
        key_panels: keys.values_mut().as_mut_ptr(),
        value_panels: values.values_mut().as_mut_ptr(),
        scores: scores.values_mut().as_mut_ptr(),
        context: context.values_mut().as_mut_ptr(),
        context_stride: width,
    };
    let operations = 4.0 * (tokens * tokens * width) as f64;
    let found = rate(operations, || {
        // SAFETY: every buffer has the size that the head states.
        unsafe {
            kernels.prepare_head(&head);
            for first in (0..tokens).step_by(attention::SCORE_ROWS) {
                kernels.head_rows(&head, first, attention::SCORE_ROWS.min(tokens - first));
            }
        }
    });
    writeln!(out, "{found:8.1} GF/s  a head of {tokens} tokens")?;
    // SAFETY: as above.
    let prepared = rate((tokens * width) as f64, || unsafe { kernels.prepare_head(&head) });
    writeln!(out, "{prepared:8.2} G values/s laid out")?;
    let (rows, width) = (96, 384);
    let input = filled(rows * width)?;
    let constants = filled(width)?;
    let mut result = Buffer::zeroed(rows * width)?;
    let call = LayerNorm {
        input: input.values().as_ptr(),
        out: result.values_mut().as_mut_ptr(),
        stride: width,
        rows,
        width,
        weight: constants.values().as_ptr(),
        bias: constants.values().as_ptr(),
        eps: 1e-12,
    };
    // SAFETY: every buffer has the size that the call states.
    let normed = rate((rows * width) as f64, || unsafe { kernels.layer_norm(&call) });
    writeln!(out, "{normed:8.2} G values/s normalised")?;
    Ok(())
}
