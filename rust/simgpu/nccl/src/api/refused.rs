//! Functions that are not simulated. Each says its name and fails.

use std::ffi::c_int;

use crate::failure::{Failure, remember};

macro_rules! refused {
    ($($name:ident)*) => {$(
        /// Not simulated.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            let text = concat!(stringify!($name), " is not simulated");
            simgpu_common::report("nccl", text);
            let failure = Failure::usage(text);
            remember(&failure);
            failure.code.0
        }
    )*};
}

refused! {
    ncclDevCommCreate ncclDevCommDestroy ncclGetLsaMultimemDevicePointer
    ncclGetMultimemDevicePointer ncclGinBarrierCreateRequirement ncclGinInboxA2ACreateRequirement
    ncclGinOutboxCreateRequirement ncclLLA2ACalcSlots ncclLLA2ACreateRequirement
    ncclLsaBarrierCreateRequirement ncclParamBind ncclParamGet ncclParamGetAllParameterKeys
    ncclParamGetI8 ncclParamGetI16 ncclParamGetI32 ncclParamGetI64 ncclParamGetU8 ncclParamGetU16
    ncclParamGetU32 ncclParamGetU64 ncclParamGetStr ncclParamGetParameter
    ncclTeamLsa ncclTeamRail ncclTeamRankToLsa ncclTeamRankToWorld ncclTeamWorld
}

/// Prints no parameters: there are none.
#[unsafe(no_mangle)]
pub extern "C" fn ncclParamDumpAll() {}

/// Does nothing, as in NCCL.
#[unsafe(no_mangle)]
pub extern "C" fn ncclResetDebugInit() {}
