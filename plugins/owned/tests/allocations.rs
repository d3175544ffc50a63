//! What a call takes from the heap when the engine is warm: short lists, never activations; and all of it is given back.
//!
//! `SYNAPSE_TEST_LONG=1` makes it 5,000 batches for each arithmetic.

mod zoo;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use synapse_owned::artifact::modules::Pooling;
use synapse_owned::engine::{Arithmetic, Engine, LoadSettings};
use synapse_owned::kernel::isa::Kernels;

/// Bytes that live now, and the largest single allocation since it was last reset.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// Counts on behalf of the system's allocator.
struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::SeqCst);
        LARGEST.fetch_max(layout.size(), Ordering::SeqCst);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Resident bytes of this process, where the system says: what was mapped past the allocator counts too.
fn resident() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4_096)
}

/// The only test of this file: another one beside it would be counted too.
#[test]
fn a_warm_engine_allocates_lists_only_and_keeps_nothing() {
    let batches = match std::env::var_os("SYNAPSE_TEST_LONG") {
        Some(_) => 5_000,
        None => 500,
    };
    for arithmetic in [Arithmetic::F32, Arithmetic::S16] {
        let engine = Engine::new(Kernels::preferred());
        let files = zoo::files(
            zoo::fixture("bert-embed/config.json"),
            zoo::fixture("bert-embed/model.safetensors"),
        );
        let settings = LoadSettings {
            arithmetic,
            ..zoo::settings(Pooling::Mean, 128)
        };
        let model = engine.load(&files, settings, &mut |_, _| true).unwrap();
        let ids: Vec<i32> = (0..128).map(|id| 5 + id % 800).collect();
        let mut state = 1_u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        // The largest shapes first, apart and together, so that nearly every later call has room.
        for threads in [3, 2, 1] {
            zoo::embed(&engine, &model, &[&ids[..]; 40], threads);
        }
        zoo::embed(&engine, &model, &[&ids, &ids[..127]], 3);
        zoo::embed(&engine, &model, &[&ids, &ids[..42]], 2);
        let warm = LIVE.load(Ordering::SeqCst);
        let resident_warm = resident();
        let mut growing = 0;
        for _ in 0..batches {
            let count = 1 + next(24);
            let lengths: Vec<usize> = (0..count).map(|_| 1 + next(128) as usize).collect();
            let items: Vec<&[i32]> = lengths.iter().map(|&length| &ids[..length]).collect();
            let concatenated: usize = lengths.iter().sum();
            LARGEST.store(0, Ordering::SeqCst);
            drop(zoo::embed(&engine, &model, &items, 1 + next(3) as usize));
            // The test's own copy of the ids and of the vectors are counted as well.
            let own = (concatenated * size_of::<i32>()).max(items.len() * 48 * size_of::<f32>());
            growing += usize::from(LARGEST.load(Ordering::SeqCst) > own + 4_096);
        }
        // On a busy machine a warm-up call may have stayed on one thread: its ranks' workspaces grow once, later.
        assert!(
            growing <= 24,
            "{growing} of {batches} warm calls took memory for activations in {arithmetic:?}"
        );
        let kept = LIVE.load(Ordering::SeqCst).saturating_sub(warm);
        assert!(
            kept <= 1 << 20,
            "{kept} bytes were kept after {batches} calls in {arithmetic:?}"
        );
        if let (Some(before), Some(after)) = (resident_warm, resident()) {
            let grown = after.saturating_sub(before);
            let line = format!("{arithmetic:?}: {before} bytes resident when warm, {after} after {batches} batches");
            let _ = writeln!(std::io::stderr(), "{line}");
            assert!(
                grown <= 4 << 20,
                "{grown} resident bytes more after {batches} calls in {arithmetic:?}"
            );
        }
    }
}
