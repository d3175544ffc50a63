//! `synapse.environment/1`: what a plugin sees of the machine: drivers, devices, its hardware floor.
//!
//! An extension of the root module. The host puts stable values into the machine profile and shows the rest.

use abi_stable::std_types::{RResult, RString, RVec};

use super::{ExtensionHeader, ExtensionTable};
use crate::{EngineError, KeyValue};

/// One device that the plugin could run on.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// A stable id, unique in the report, for example `cuda:0`.
    pub id: RString,
    /// The vendor's name of it.
    pub name: RString,
    /// `cpu`, `gpu` or `npu`.
    pub kind: RString,
    /// The device's memory in bytes, 0 when it shares the host's.
    pub memory_bytes: u64,
}

/// One thing that the plugin needs of the machine.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloorItem {
    /// What it is, for example `cpu.avx2` or `cuda.driver`.
    pub name: RString,
    /// What is needed, as text.
    pub needed: RString,
    /// What was found, as text; empty when it is absent.
    pub found: RString,
    /// Whether the need is met. The host does not call engines of a plugin with an unmet need.
    pub met: bool,
}

/// What a plugin sees of the machine.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentReport {
    /// Drivers and backends with their versions.
    pub drivers: RVec<KeyValue>,
    /// The devices.
    pub devices: RVec<Device>,
    /// The hardware floor.
    pub floor: RVec<FloorItem>,
}

/// Looks at the machine.
pub type ReportFn = unsafe extern "C" fn(*const ()) -> RResult<EnvironmentReport, EngineError>;

/// The table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EnvironmentTable {
    /// Length and revision.
    pub header: ExtensionHeader,
    /// First argument of the functions; valid for the life of the process.
    pub state: *const (),
    /// `[control]` Looks at the machine. May take a second the first time. Errors: DEVICE, INTERNAL.
    pub report: ReportFn,
}

// SAFETY: repr(C), header first; whoever makes one promises that state and functions may be used from any thread.
unsafe impl ExtensionTable for EnvironmentTable {
    const ID: &'static str = "synapse.environment/1";
    const REV: u32 = 1;
}
// SAFETY: as above.
unsafe impl Send for EnvironmentTable {}
// SAFETY: as above.
unsafe impl Sync for EnvironmentTable {}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<EnvironmentTable>() == 24 && size_of::<EnvironmentReport>() == 96);
    assert!(size_of::<Device>() == 104 && size_of::<FloorItem>() == 104);
    assert!(offset_of!(EnvironmentTable, header) == 0 && offset_of!(EnvironmentTable, state) == 8);
    assert!(offset_of!(EnvironmentTable, report) == 16 && offset_of!(FloorItem, met) == 96);
    assert!(offset_of!(EnvironmentReport, devices) == 32 && offset_of!(EnvironmentReport, floor) == 64);
};
