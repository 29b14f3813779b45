// Made by bindgen 0.73 from the header of NCCL 2.32.3; README.md has the command. Do not edit.
pub const NCCL_MAJOR: u32 = 2;
pub const NCCL_MINOR: u32 = 32;
pub const NCCL_PATCH: u32 = 3;
pub const NCCL_SUFFIX: &[u8; 1] = b"\0";
pub const NCCL_VERSION_CODE: u32 = 23203;
pub const NCCL_UNIQUE_ID_BYTES: u32 = 128;
pub const NCCL_SPLIT_NOCOLOR: i32 = -1;
pub const NCCL_UNDEF_FLOAT: f64 = -1.0;
pub const NCCL_API_MAGIC: u32 = 3405692655;
pub const NCCL_WIN_DEFAULT: u32 = 0;
pub const NCCL_WIN_COLL_SYMMETRIC: u32 = 1;
pub const NCCL_WIN_STRICT_ORDERING: u32 = 2;
pub const NCCL_WIN_GIN_ONLY: u32 = 4;
pub const NCCL_WIN_CFT_COUNTED: u32 = 8;
pub const NCCL_WIN_REQUIRED_ALIGNMENT: u32 = 4096;
pub const NCCL_CTA_POLICY_DEFAULT: u32 = 0;
pub const NCCL_CTA_POLICY_EFFICIENCY: u32 = 1;
pub const NCCL_CTA_POLICY_ZERO: u32 = 2;
pub const NCCL_SHRINK_DEFAULT: u32 = 0;
pub const NCCL_SHRINK_ABORT: u32 = 1;
pub const NCCL_REVOKE_DEFAULT: u32 = 0;
pub const NCCL_SUSPEND_MEM: u32 = 1;
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type cudaStream_t = *mut CUstream_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUevent_st {
    _unused: [u8; 0],
}
pub type cudaEvent_t = *mut CUevent_st;
#[repr(C)]
#[derive(Debug)]
pub struct ncclComm {
    _unused: [u8; 0],
}
pub type ncclComm_t = *mut ncclComm;
#[repr(C)]
#[derive(Debug)]
pub struct ncclWindow_vidmem {
    _unused: [u8; 0],
}
pub type ncclWindow_t = *mut ncclWindow_vidmem;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclUniqueId {
    pub internal: [::std::os::raw::c_char; 128usize],
}
impl ncclResult_t {
    pub const ncclSuccess: ncclResult_t = ncclResult_t(0);
    pub const ncclUnhandledCudaError: ncclResult_t = ncclResult_t(1);
    pub const ncclSystemError: ncclResult_t = ncclResult_t(2);
    pub const ncclInternalError: ncclResult_t = ncclResult_t(3);
    pub const ncclInvalidArgument: ncclResult_t = ncclResult_t(4);
    pub const ncclInvalidUsage: ncclResult_t = ncclResult_t(5);
    pub const ncclRemoteError: ncclResult_t = ncclResult_t(6);
    pub const ncclInProgress: ncclResult_t = ncclResult_t(7);
    pub const ncclTimeout: ncclResult_t = ncclResult_t(8);
    pub const ncclNumResults: ncclResult_t = ncclResult_t(9);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclResult_t(pub ::std::os::raw::c_uint);
impl ncclHostCftMode_t {
    pub const ncclHostCftDefault: ncclHostCftMode_t = ncclHostCftMode_t(-2147483648);
    pub const ncclHostCftEnable: ncclHostCftMode_t = ncclHostCftMode_t(1);
    pub const ncclHostCftDisable: ncclHostCftMode_t = ncclHostCftMode_t(2);
    pub const ncclHostCftFallback: ncclHostCftMode_t = ncclHostCftMode_t(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclHostCftMode_t(pub ::std::os::raw::c_int);
impl ncclNvlsHostMode_t {
    pub const ncclNvlsHostModeDefault: ncclNvlsHostMode_t = ncclNvlsHostMode_t(-2147483648);
    pub const ncclNvlsHostModeEnable: ncclNvlsHostMode_t = ncclNvlsHostMode_t(0);
    pub const ncclNvlsHostModeDisableTransport: ncclNvlsHostMode_t = ncclNvlsHostMode_t(1);
    pub const ncclNvlsHostModeDisableSymmetricMultimem: ncclNvlsHostMode_t = ncclNvlsHostMode_t(2);
    pub const ncclNvlsHostModeDisable: ncclNvlsHostMode_t = ncclNvlsHostMode_t(2147483647);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclNvlsHostMode_t(pub ::std::os::raw::c_int);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclConfig_v23100 {
    pub size: usize,
    pub magic: ::std::os::raw::c_uint,
    pub version: ::std::os::raw::c_uint,
    pub blocking: ::std::os::raw::c_int,
    pub cgaClusterSize: ::std::os::raw::c_int,
    pub minCTAs: ::std::os::raw::c_int,
    pub maxCTAs: ::std::os::raw::c_int,
    pub netName: *const ::std::os::raw::c_char,
    pub splitShare: ::std::os::raw::c_int,
    pub trafficClass: ::std::os::raw::c_int,
    pub commName: *const ::std::os::raw::c_char,
    pub collnetEnable: ::std::os::raw::c_int,
    pub CTAPolicy: ::std::os::raw::c_int,
    pub shrinkShare: ::std::os::raw::c_int,
    pub nvlsCTAs: ::std::os::raw::c_int,
    pub nChannelsPerNetPeer: ::std::os::raw::c_int,
    pub nvlinkCentricSched: ::std::os::raw::c_int,
    pub graphUsageMode: ::std::os::raw::c_int,
    pub numRmaCtx: ::std::os::raw::c_int,
    pub maxP2pPeers: ::std::os::raw::c_int,
    pub graphStreamOrdering: ::std::os::raw::c_int,
    pub launchOrderImplicit: ::std::os::raw::c_int,
    pub numRmaSig: ::std::os::raw::c_int,
    pub rmaEagerInit: ::std::os::raw::c_int,
    pub hostCftMode: ::std::os::raw::c_int,
    pub nvlsHostMode: ::std::os::raw::c_int,
}
pub type ncclConfig_t = ncclConfig_v23100;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ncclConfigExt {
    pub next: *mut ncclConfigExt,
    pub key: ncclConfigExt__bindgen_ty_1,
    pub val: ncclConfigExt__bindgen_ty_2,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclConfigExt__bindgen_ty_1 {
    pub vendorId: ::std::os::raw::c_int,
    pub optionId: ::std::os::raw::c_int,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ncclConfigExt__bindgen_ty_2 {
    pub i: ::std::os::raw::c_int,
    pub s: *const ::std::os::raw::c_char,
    pub raw: *mut ::std::os::raw::c_void,
}
pub type ncclConfigExt_t = ncclConfigExt;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclCollConfig_v23200 {
    pub size: usize,
    pub magic: ::std::os::raw::c_uint,
    pub version: ::std::os::raw::c_uint,
    pub ext: *mut ncclConfigExt_t,
    pub minCTAs: ::std::os::raw::c_int,
    pub maxCTAs: ::std::os::raw::c_int,
    pub nvlsCTAs: ::std::os::raw::c_int,
    pub cgaClusterSize: ::std::os::raw::c_int,
    pub algSelection: *const ::std::os::raw::c_char,
    pub forceAlgSelection: ::std::os::raw::c_int,
    pub CTAPolicy: ::std::os::raw::c_int,
    pub userProfilerTag: u64,
    pub launchCompletionEvent: cudaEvent_t,
}
pub type ncclCollConfig_t = ncclCollConfig_v23200;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclSimInfo_v22200 {
    pub size: usize,
    pub magic: ::std::os::raw::c_uint,
    pub version: ::std::os::raw::c_uint,
    pub estimatedTime: f32,
}
pub type ncclSimInfo_t = ncclSimInfo_v22200;
impl ncclCommMemStat_t {
    pub const ncclStatGpuMemSuspend: ncclCommMemStat_t = ncclCommMemStat_t(0);
    pub const ncclStatGpuMemSuspended: ncclCommMemStat_t = ncclCommMemStat_t(1);
    pub const ncclStatGpuMemPersist: ncclCommMemStat_t = ncclCommMemStat_t(2);
    pub const ncclStatGpuMemTotal: ncclCommMemStat_t = ncclCommMemStat_t(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclCommMemStat_t(pub ::std::os::raw::c_uint);
impl ncclRedOp_dummy_t {
    pub const ncclNumOps_dummy: ncclRedOp_dummy_t = ncclRedOp_dummy_t(5);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclRedOp_dummy_t(pub ::std::os::raw::c_uint);
impl ncclRedOp_t {
    pub const ncclSum: ncclRedOp_t = ncclRedOp_t(0);
    pub const ncclProd: ncclRedOp_t = ncclRedOp_t(1);
    pub const ncclMax: ncclRedOp_t = ncclRedOp_t(2);
    pub const ncclMin: ncclRedOp_t = ncclRedOp_t(3);
    pub const ncclAvg: ncclRedOp_t = ncclRedOp_t(4);
    pub const ncclNumOps: ncclRedOp_t = ncclRedOp_t(5);
    pub const ncclMaxRedOp: ncclRedOp_t = ncclRedOp_t(2147483647);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclRedOp_t(pub ::std::os::raw::c_uint);
impl ncclDataType_t {
    pub const ncclInt8: ncclDataType_t = ncclDataType_t(0);
    pub const ncclChar: ncclDataType_t = ncclDataType_t(0);
    pub const ncclUint8: ncclDataType_t = ncclDataType_t(1);
    pub const ncclInt32: ncclDataType_t = ncclDataType_t(2);
    pub const ncclInt: ncclDataType_t = ncclDataType_t(2);
    pub const ncclUint32: ncclDataType_t = ncclDataType_t(3);
    pub const ncclInt64: ncclDataType_t = ncclDataType_t(4);
    pub const ncclUint64: ncclDataType_t = ncclDataType_t(5);
    pub const ncclFloat16: ncclDataType_t = ncclDataType_t(6);
    pub const ncclHalf: ncclDataType_t = ncclDataType_t(6);
    pub const ncclFloat32: ncclDataType_t = ncclDataType_t(7);
    pub const ncclFloat: ncclDataType_t = ncclDataType_t(7);
    pub const ncclFloat64: ncclDataType_t = ncclDataType_t(8);
    pub const ncclDouble: ncclDataType_t = ncclDataType_t(8);
    pub const ncclBfloat16: ncclDataType_t = ncclDataType_t(9);
    pub const ncclFloat8e4m3: ncclDataType_t = ncclDataType_t(10);
    pub const ncclFloat8e5m2: ncclDataType_t = ncclDataType_t(11);
    pub const ncclNumTypes: ncclDataType_t = ncclDataType_t(12);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclDataType_t(pub ::std::os::raw::c_uint);
impl ncclScalarResidence_t {
    pub const ncclScalarDevice: ncclScalarResidence_t = ncclScalarResidence_t(0);
    pub const ncclScalarHostImmediate: ncclScalarResidence_t = ncclScalarResidence_t(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclScalarResidence_t(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclWaitSignalDesc_t {
    pub opCnt: ::std::os::raw::c_int,
    pub peer: ::std::os::raw::c_int,
    pub sigIdx: ::std::os::raw::c_int,
    pub ctx: ::std::os::raw::c_int,
}
impl ncclEncryptionMode_t {
    pub const NCCL_ENCRYPTION_MODE_NONE: ncclEncryptionMode_t = ncclEncryptionMode_t(0);
    pub const NCCL_ENCRYPTION_MODE_PSK: ncclEncryptionMode_t = ncclEncryptionMode_t(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclEncryptionMode_t(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclEncryptionConfig_v23200 {
    pub size: usize,
    pub magic: ::std::os::raw::c_uint,
    pub version: ::std::os::raw::c_uint,
    pub mode: ::std::os::raw::c_int,
    pub psk: *const ::std::os::raw::c_char,
}
pub type ncclEncryptionConfig_t = ncclEncryptionConfig_v23200;
#[repr(C)]
#[derive(Debug)]
pub struct ncclParamHandle {
    _unused: [u8; 0],
}
pub type ncclParamHandle_t = *mut ncclParamHandle;
pub struct Symbols {
    __library: ::libloading::Library,
    pub ncclMemAlloc: Result<
        unsafe extern "C" fn(ptr: *mut *mut ::std::os::raw::c_void, size: usize) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclMemFree: Result<
        unsafe extern "C" fn(ptr: *mut ::std::os::raw::c_void) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetVersion: Result<
        unsafe extern "C" fn(version: *mut ::std::os::raw::c_int) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetUniqueId: Result<
        unsafe extern "C" fn(uniqueId: *mut ncclUniqueId) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommInitRankConfig: Result<
        unsafe extern "C" fn(
            comm: *mut ncclComm_t,
            nranks: ::std::os::raw::c_int,
            commId: ncclUniqueId,
            rank: ::std::os::raw::c_int,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommInitRank: Result<
        unsafe extern "C" fn(
            comm: *mut ncclComm_t,
            nranks: ::std::os::raw::c_int,
            commId: ncclUniqueId,
            rank: ::std::os::raw::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommInitAll: Result<
        unsafe extern "C" fn(
            comm: *mut ncclComm_t,
            ndev: ::std::os::raw::c_int,
            devlist: *const ::std::os::raw::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommFinalize:
        Result<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t, ::libloading::Error>,
    pub ncclCommDestroy:
        Result<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t, ::libloading::Error>,
    pub ncclCommAbort:
        Result<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t, ::libloading::Error>,
    pub ncclCommRevoke: Result<
        unsafe extern "C" fn(comm: ncclComm_t, revokeFlags: ::std::os::raw::c_int) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommSplit: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            color: ::std::os::raw::c_int,
            key: ::std::os::raw::c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommShrink: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            excludeRanksList: *mut ::std::os::raw::c_int,
            excludeRanksCount: ::std::os::raw::c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
            shrinkFlags: ::std::os::raw::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommGetUniqueId: Result<
        unsafe extern "C" fn(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommGrow: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            nRanks: ::std::os::raw::c_int,
            uniqueId: *const ncclUniqueId,
            rank: ::std::os::raw::c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommInitRankScalable: Result<
        unsafe extern "C" fn(
            newcomm: *mut ncclComm_t,
            nranks: ::std::os::raw::c_int,
            myrank: ::std::os::raw::c_int,
            nId: ::std::os::raw::c_int,
            commIds: *mut ncclUniqueId,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetErrorString: Result<
        unsafe extern "C" fn(result: ncclResult_t) -> *const ::std::os::raw::c_char,
        ::libloading::Error,
    >,
    pub ncclGetLastError: Result<
        unsafe extern "C" fn(comm: ncclComm_t) -> *const ::std::os::raw::c_char,
        ::libloading::Error,
    >,
    pub ncclCommGetAsyncError: Result<
        unsafe extern "C" fn(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommCount: Result<
        unsafe extern "C" fn(comm: ncclComm_t, count: *mut ::std::os::raw::c_int) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommCuDevice: Result<
        unsafe extern "C" fn(comm: ncclComm_t, device: *mut ::std::os::raw::c_int) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommUserRank: Result<
        unsafe extern "C" fn(comm: ncclComm_t, rank: *mut ::std::os::raw::c_int) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommRegister: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            buff: *mut ::std::os::raw::c_void,
            size: usize,
            handle: *mut *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommDeregister: Result<
        unsafe extern "C" fn(comm: ncclComm_t, handle: *mut ::std::os::raw::c_void) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommSuspend: Result<
        unsafe extern "C" fn(comm: ncclComm_t, flags: ::std::os::raw::c_int) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommResume:
        Result<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t, ::libloading::Error>,
    pub ncclCommMemStats: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            stat: ncclCommMemStat_t,
            value: *mut u64,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommWindowRegister: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            buff: *mut ::std::os::raw::c_void,
            size: usize,
            win: *mut ncclWindow_t,
            winFlags: ::std::os::raw::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommWindowDeregister: Result<
        unsafe extern "C" fn(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclWinGetUserPtr: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            win: ncclWindow_t,
            outUserPtr: *mut *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclRedOpCreatePreMulSum: Result<
        unsafe extern "C" fn(
            op: *mut ncclRedOp_t,
            scalar: *mut ::std::os::raw::c_void,
            datatype: ncclDataType_t,
            residence: ncclScalarResidence_t,
            comm: ncclComm_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclRedOpDestroy: Result<
        unsafe extern "C" fn(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclReduce: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclBcast: Result<
        unsafe extern "C" fn(
            buff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclBroadcast: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAllReduce: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclReduceScatter: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            recvcount: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAllGather: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            sendcount: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAlltoAll: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGather: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclScatter: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAllReduceConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclBroadcastConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclReduceConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAllGatherConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            sendcount: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclReduceScatterConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            recvcount: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAlltoAllConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGatherConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclScatterConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclSend: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclRecv: Result<
        unsafe extern "C" fn(
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclPutSignal: Result<
        unsafe extern "C" fn(
            localbuff: *const ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: ::std::os::raw::c_int,
            peerWin: ncclWindow_t,
            peerWinOffset: usize,
            sigIdx: ::std::os::raw::c_int,
            ctx: ::std::os::raw::c_int,
            flags: ::std::os::raw::c_uint,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclSignal: Result<
        unsafe extern "C" fn(
            peer: ::std::os::raw::c_int,
            sigIdx: ::std::os::raw::c_int,
            ctx: ::std::os::raw::c_int,
            flags: ::std::os::raw::c_uint,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclWaitSignal: Result<
        unsafe extern "C" fn(
            nDesc: ::std::os::raw::c_int,
            signalDescs: *mut ncclWaitSignalDesc_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGroupStart: Result<unsafe extern "C" fn() -> ncclResult_t, ::libloading::Error>,
    pub ncclGroupEnd: Result<unsafe extern "C" fn() -> ncclResult_t, ::libloading::Error>,
    pub ncclGroupSimulateEnd: Result<
        unsafe extern "C" fn(simInfo: *mut ncclSimInfo_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclSetEncryption: Result<
        unsafe extern "C" fn(config: *const ncclEncryptionConfig_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamBind: Result<
        unsafe extern "C" fn(
            out: *mut ncclParamHandle_t,
            key: *const ::std::os::raw::c_char,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetI8: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetI16: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetI32: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetI64: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetU8: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetU16: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetU32: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetU64: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetStr: Result<
        unsafe extern "C" fn(
            h: ncclParamHandle_t,
            out: *mut *const ::std::os::raw::c_char,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGet: Result<
        unsafe extern "C" fn(
            h: ncclParamHandle_t,
            out: *mut ::std::os::raw::c_void,
            maxLen: ::std::os::raw::c_int,
            len: *mut ::std::os::raw::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetParameter: Result<
        unsafe extern "C" fn(
            key: *const ::std::os::raw::c_char,
            value: *mut *const ::std::os::raw::c_char,
            valueLen: *mut ::std::os::raw::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetAllParameterKeys: Result<
        unsafe extern "C" fn(
            table: *mut *mut *const ::std::os::raw::c_char,
            tableLen: *mut ::std::os::raw::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamDumpAll: Result<unsafe extern "C" fn(), ::libloading::Error>,
}
impl Symbols {
    pub unsafe fn new<P>(path: P) -> Result<Self, ::libloading::Error>
    where
        P: AsRef<::std::ffi::OsStr>,
    {
        let path = path.as_ref();
        let library = ::libloading::Library::new(path)?;
        Self::from_library(library)
    }
    pub unsafe fn from_library<L>(library: L) -> Result<Self, ::libloading::Error>
    where
        L: Into<::libloading::Library>,
    {
        let __library = library.into();
        let ncclMemAlloc = __library.get(b"ncclMemAlloc\0").map(|sym| *sym);
        let ncclMemFree = __library.get(b"ncclMemFree\0").map(|sym| *sym);
        let ncclGetVersion = __library.get(b"ncclGetVersion\0").map(|sym| *sym);
        let ncclGetUniqueId = __library.get(b"ncclGetUniqueId\0").map(|sym| *sym);
        let ncclCommInitRankConfig = __library.get(b"ncclCommInitRankConfig\0").map(|sym| *sym);
        let ncclCommInitRank = __library.get(b"ncclCommInitRank\0").map(|sym| *sym);
        let ncclCommInitAll = __library.get(b"ncclCommInitAll\0").map(|sym| *sym);
        let ncclCommFinalize = __library.get(b"ncclCommFinalize\0").map(|sym| *sym);
        let ncclCommDestroy = __library.get(b"ncclCommDestroy\0").map(|sym| *sym);
        let ncclCommAbort = __library.get(b"ncclCommAbort\0").map(|sym| *sym);
        let ncclCommRevoke = __library.get(b"ncclCommRevoke\0").map(|sym| *sym);
        let ncclCommSplit = __library.get(b"ncclCommSplit\0").map(|sym| *sym);
        let ncclCommShrink = __library.get(b"ncclCommShrink\0").map(|sym| *sym);
        let ncclCommGetUniqueId = __library.get(b"ncclCommGetUniqueId\0").map(|sym| *sym);
        let ncclCommGrow = __library.get(b"ncclCommGrow\0").map(|sym| *sym);
        let ncclCommInitRankScalable = __library.get(b"ncclCommInitRankScalable\0").map(|sym| *sym);
        let ncclGetErrorString = __library.get(b"ncclGetErrorString\0").map(|sym| *sym);
        let ncclGetLastError = __library.get(b"ncclGetLastError\0").map(|sym| *sym);
        let ncclCommGetAsyncError = __library.get(b"ncclCommGetAsyncError\0").map(|sym| *sym);
        let ncclCommCount = __library.get(b"ncclCommCount\0").map(|sym| *sym);
        let ncclCommCuDevice = __library.get(b"ncclCommCuDevice\0").map(|sym| *sym);
        let ncclCommUserRank = __library.get(b"ncclCommUserRank\0").map(|sym| *sym);
        let ncclCommRegister = __library.get(b"ncclCommRegister\0").map(|sym| *sym);
        let ncclCommDeregister = __library.get(b"ncclCommDeregister\0").map(|sym| *sym);
        let ncclCommSuspend = __library.get(b"ncclCommSuspend\0").map(|sym| *sym);
        let ncclCommResume = __library.get(b"ncclCommResume\0").map(|sym| *sym);
        let ncclCommMemStats = __library.get(b"ncclCommMemStats\0").map(|sym| *sym);
        let ncclCommWindowRegister = __library.get(b"ncclCommWindowRegister\0").map(|sym| *sym);
        let ncclCommWindowDeregister = __library.get(b"ncclCommWindowDeregister\0").map(|sym| *sym);
        let ncclWinGetUserPtr = __library.get(b"ncclWinGetUserPtr\0").map(|sym| *sym);
        let ncclRedOpCreatePreMulSum = __library.get(b"ncclRedOpCreatePreMulSum\0").map(|sym| *sym);
        let ncclRedOpDestroy = __library.get(b"ncclRedOpDestroy\0").map(|sym| *sym);
        let ncclReduce = __library.get(b"ncclReduce\0").map(|sym| *sym);
        let ncclBcast = __library.get(b"ncclBcast\0").map(|sym| *sym);
        let ncclBroadcast = __library.get(b"ncclBroadcast\0").map(|sym| *sym);
        let ncclAllReduce = __library.get(b"ncclAllReduce\0").map(|sym| *sym);
        let ncclReduceScatter = __library.get(b"ncclReduceScatter\0").map(|sym| *sym);
        let ncclAllGather = __library.get(b"ncclAllGather\0").map(|sym| *sym);
        let ncclAlltoAll = __library.get(b"ncclAlltoAll\0").map(|sym| *sym);
        let ncclGather = __library.get(b"ncclGather\0").map(|sym| *sym);
        let ncclScatter = __library.get(b"ncclScatter\0").map(|sym| *sym);
        let ncclAllReduceConfig = __library.get(b"ncclAllReduceConfig\0").map(|sym| *sym);
        let ncclBroadcastConfig = __library.get(b"ncclBroadcastConfig\0").map(|sym| *sym);
        let ncclReduceConfig = __library.get(b"ncclReduceConfig\0").map(|sym| *sym);
        let ncclAllGatherConfig = __library.get(b"ncclAllGatherConfig\0").map(|sym| *sym);
        let ncclReduceScatterConfig = __library.get(b"ncclReduceScatterConfig\0").map(|sym| *sym);
        let ncclAlltoAllConfig = __library.get(b"ncclAlltoAllConfig\0").map(|sym| *sym);
        let ncclGatherConfig = __library.get(b"ncclGatherConfig\0").map(|sym| *sym);
        let ncclScatterConfig = __library.get(b"ncclScatterConfig\0").map(|sym| *sym);
        let ncclSend = __library.get(b"ncclSend\0").map(|sym| *sym);
        let ncclRecv = __library.get(b"ncclRecv\0").map(|sym| *sym);
        let ncclPutSignal = __library.get(b"ncclPutSignal\0").map(|sym| *sym);
        let ncclSignal = __library.get(b"ncclSignal\0").map(|sym| *sym);
        let ncclWaitSignal = __library.get(b"ncclWaitSignal\0").map(|sym| *sym);
        let ncclGroupStart = __library.get(b"ncclGroupStart\0").map(|sym| *sym);
        let ncclGroupEnd = __library.get(b"ncclGroupEnd\0").map(|sym| *sym);
        let ncclGroupSimulateEnd = __library.get(b"ncclGroupSimulateEnd\0").map(|sym| *sym);
        let ncclSetEncryption = __library.get(b"ncclSetEncryption\0").map(|sym| *sym);
        let ncclParamBind = __library.get(b"ncclParamBind\0").map(|sym| *sym);
        let ncclParamGetI8 = __library.get(b"ncclParamGetI8\0").map(|sym| *sym);
        let ncclParamGetI16 = __library.get(b"ncclParamGetI16\0").map(|sym| *sym);
        let ncclParamGetI32 = __library.get(b"ncclParamGetI32\0").map(|sym| *sym);
        let ncclParamGetI64 = __library.get(b"ncclParamGetI64\0").map(|sym| *sym);
        let ncclParamGetU8 = __library.get(b"ncclParamGetU8\0").map(|sym| *sym);
        let ncclParamGetU16 = __library.get(b"ncclParamGetU16\0").map(|sym| *sym);
        let ncclParamGetU32 = __library.get(b"ncclParamGetU32\0").map(|sym| *sym);
        let ncclParamGetU64 = __library.get(b"ncclParamGetU64\0").map(|sym| *sym);
        let ncclParamGetStr = __library.get(b"ncclParamGetStr\0").map(|sym| *sym);
        let ncclParamGet = __library.get(b"ncclParamGet\0").map(|sym| *sym);
        let ncclParamGetParameter = __library.get(b"ncclParamGetParameter\0").map(|sym| *sym);
        let ncclParamGetAllParameterKeys = __library
            .get(b"ncclParamGetAllParameterKeys\0")
            .map(|sym| *sym);
        let ncclParamDumpAll = __library.get(b"ncclParamDumpAll\0").map(|sym| *sym);
        Ok(Symbols {
            __library,
            ncclMemAlloc,
            ncclMemFree,
            ncclGetVersion,
            ncclGetUniqueId,
            ncclCommInitRankConfig,
            ncclCommInitRank,
            ncclCommInitAll,
            ncclCommFinalize,
            ncclCommDestroy,
            ncclCommAbort,
            ncclCommRevoke,
            ncclCommSplit,
            ncclCommShrink,
            ncclCommGetUniqueId,
            ncclCommGrow,
            ncclCommInitRankScalable,
            ncclGetErrorString,
            ncclGetLastError,
            ncclCommGetAsyncError,
            ncclCommCount,
            ncclCommCuDevice,
            ncclCommUserRank,
            ncclCommRegister,
            ncclCommDeregister,
            ncclCommSuspend,
            ncclCommResume,
            ncclCommMemStats,
            ncclCommWindowRegister,
            ncclCommWindowDeregister,
            ncclWinGetUserPtr,
            ncclRedOpCreatePreMulSum,
            ncclRedOpDestroy,
            ncclReduce,
            ncclBcast,
            ncclBroadcast,
            ncclAllReduce,
            ncclReduceScatter,
            ncclAllGather,
            ncclAlltoAll,
            ncclGather,
            ncclScatter,
            ncclAllReduceConfig,
            ncclBroadcastConfig,
            ncclReduceConfig,
            ncclAllGatherConfig,
            ncclReduceScatterConfig,
            ncclAlltoAllConfig,
            ncclGatherConfig,
            ncclScatterConfig,
            ncclSend,
            ncclRecv,
            ncclPutSignal,
            ncclSignal,
            ncclWaitSignal,
            ncclGroupStart,
            ncclGroupEnd,
            ncclGroupSimulateEnd,
            ncclSetEncryption,
            ncclParamBind,
            ncclParamGetI8,
            ncclParamGetI16,
            ncclParamGetI32,
            ncclParamGetI64,
            ncclParamGetU8,
            ncclParamGetU16,
            ncclParamGetU32,
            ncclParamGetU64,
            ncclParamGetStr,
            ncclParamGet,
            ncclParamGetParameter,
            ncclParamGetAllParameterKeys,
            ncclParamDumpAll,
        })
    }
    pub unsafe fn ncclMemAlloc(
        &self,
        ptr: *mut *mut ::std::os::raw::c_void,
        size: usize,
    ) -> ncclResult_t {
        (self
            .ncclMemAlloc
            .as_ref()
            .expect("Expected function, got error."))(ptr, size)
    }
    pub unsafe fn ncclMemFree(&self, ptr: *mut ::std::os::raw::c_void) -> ncclResult_t {
        (self
            .ncclMemFree
            .as_ref()
            .expect("Expected function, got error."))(ptr)
    }
    pub unsafe fn ncclGetVersion(&self, version: *mut ::std::os::raw::c_int) -> ncclResult_t {
        (self
            .ncclGetVersion
            .as_ref()
            .expect("Expected function, got error."))(version)
    }
    pub unsafe fn ncclGetUniqueId(&self, uniqueId: *mut ncclUniqueId) -> ncclResult_t {
        (self
            .ncclGetUniqueId
            .as_ref()
            .expect("Expected function, got error."))(uniqueId)
    }
    pub unsafe fn ncclCommInitRankConfig(
        &self,
        comm: *mut ncclComm_t,
        nranks: ::std::os::raw::c_int,
        commId: ncclUniqueId,
        rank: ::std::os::raw::c_int,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclCommInitRankConfig
            .as_ref()
            .expect("Expected function, got error."))(comm, nranks, commId, rank, config)
    }
    pub unsafe fn ncclCommInitRank(
        &self,
        comm: *mut ncclComm_t,
        nranks: ::std::os::raw::c_int,
        commId: ncclUniqueId,
        rank: ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclCommInitRank
            .as_ref()
            .expect("Expected function, got error."))(comm, nranks, commId, rank)
    }
    pub unsafe fn ncclCommInitAll(
        &self,
        comm: *mut ncclComm_t,
        ndev: ::std::os::raw::c_int,
        devlist: *const ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclCommInitAll
            .as_ref()
            .expect("Expected function, got error."))(comm, ndev, devlist)
    }
    pub unsafe fn ncclCommFinalize(&self, comm: ncclComm_t) -> ncclResult_t {
        (self
            .ncclCommFinalize
            .as_ref()
            .expect("Expected function, got error."))(comm)
    }
    pub unsafe fn ncclCommDestroy(&self, comm: ncclComm_t) -> ncclResult_t {
        (self
            .ncclCommDestroy
            .as_ref()
            .expect("Expected function, got error."))(comm)
    }
    pub unsafe fn ncclCommAbort(&self, comm: ncclComm_t) -> ncclResult_t {
        (self
            .ncclCommAbort
            .as_ref()
            .expect("Expected function, got error."))(comm)
    }
    pub unsafe fn ncclCommRevoke(
        &self,
        comm: ncclComm_t,
        revokeFlags: ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclCommRevoke
            .as_ref()
            .expect("Expected function, got error."))(comm, revokeFlags)
    }
    pub unsafe fn ncclCommSplit(
        &self,
        comm: ncclComm_t,
        color: ::std::os::raw::c_int,
        key: ::std::os::raw::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclCommSplit
            .as_ref()
            .expect("Expected function, got error."))(comm, color, key, newcomm, config)
    }
    pub unsafe fn ncclCommShrink(
        &self,
        comm: ncclComm_t,
        excludeRanksList: *mut ::std::os::raw::c_int,
        excludeRanksCount: ::std::os::raw::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
        shrinkFlags: ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclCommShrink
            .as_ref()
            .expect("Expected function, got error."))(
            comm,
            excludeRanksList,
            excludeRanksCount,
            newcomm,
            config,
            shrinkFlags,
        )
    }
    pub unsafe fn ncclCommGetUniqueId(
        &self,
        comm: ncclComm_t,
        uniqueId: *mut ncclUniqueId,
    ) -> ncclResult_t {
        (self
            .ncclCommGetUniqueId
            .as_ref()
            .expect("Expected function, got error."))(comm, uniqueId)
    }
    pub unsafe fn ncclCommGrow(
        &self,
        comm: ncclComm_t,
        nRanks: ::std::os::raw::c_int,
        uniqueId: *const ncclUniqueId,
        rank: ::std::os::raw::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclCommGrow
            .as_ref()
            .expect("Expected function, got error."))(
            comm, nRanks, uniqueId, rank, newcomm, config
        )
    }
    pub unsafe fn ncclCommInitRankScalable(
        &self,
        newcomm: *mut ncclComm_t,
        nranks: ::std::os::raw::c_int,
        myrank: ::std::os::raw::c_int,
        nId: ::std::os::raw::c_int,
        commIds: *mut ncclUniqueId,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclCommInitRankScalable
            .as_ref()
            .expect("Expected function, got error."))(
            newcomm, nranks, myrank, nId, commIds, config
        )
    }
    pub unsafe fn ncclGetErrorString(&self, result: ncclResult_t) -> *const ::std::os::raw::c_char {
        (self
            .ncclGetErrorString
            .as_ref()
            .expect("Expected function, got error."))(result)
    }
    pub unsafe fn ncclGetLastError(&self, comm: ncclComm_t) -> *const ::std::os::raw::c_char {
        (self
            .ncclGetLastError
            .as_ref()
            .expect("Expected function, got error."))(comm)
    }
    pub unsafe fn ncclCommGetAsyncError(
        &self,
        comm: ncclComm_t,
        asyncError: *mut ncclResult_t,
    ) -> ncclResult_t {
        (self
            .ncclCommGetAsyncError
            .as_ref()
            .expect("Expected function, got error."))(comm, asyncError)
    }
    pub unsafe fn ncclCommCount(
        &self,
        comm: ncclComm_t,
        count: *mut ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclCommCount
            .as_ref()
            .expect("Expected function, got error."))(comm, count)
    }
    pub unsafe fn ncclCommCuDevice(
        &self,
        comm: ncclComm_t,
        device: *mut ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclCommCuDevice
            .as_ref()
            .expect("Expected function, got error."))(comm, device)
    }
    pub unsafe fn ncclCommUserRank(
        &self,
        comm: ncclComm_t,
        rank: *mut ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclCommUserRank
            .as_ref()
            .expect("Expected function, got error."))(comm, rank)
    }
    pub unsafe fn ncclCommRegister(
        &self,
        comm: ncclComm_t,
        buff: *mut ::std::os::raw::c_void,
        size: usize,
        handle: *mut *mut ::std::os::raw::c_void,
    ) -> ncclResult_t {
        (self
            .ncclCommRegister
            .as_ref()
            .expect("Expected function, got error."))(comm, buff, size, handle)
    }
    pub unsafe fn ncclCommDeregister(
        &self,
        comm: ncclComm_t,
        handle: *mut ::std::os::raw::c_void,
    ) -> ncclResult_t {
        (self
            .ncclCommDeregister
            .as_ref()
            .expect("Expected function, got error."))(comm, handle)
    }
    pub unsafe fn ncclCommSuspend(
        &self,
        comm: ncclComm_t,
        flags: ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclCommSuspend
            .as_ref()
            .expect("Expected function, got error."))(comm, flags)
    }
    pub unsafe fn ncclCommResume(&self, comm: ncclComm_t) -> ncclResult_t {
        (self
            .ncclCommResume
            .as_ref()
            .expect("Expected function, got error."))(comm)
    }
    pub unsafe fn ncclCommMemStats(
        &self,
        comm: ncclComm_t,
        stat: ncclCommMemStat_t,
        value: *mut u64,
    ) -> ncclResult_t {
        (self
            .ncclCommMemStats
            .as_ref()
            .expect("Expected function, got error."))(comm, stat, value)
    }
    pub unsafe fn ncclCommWindowRegister(
        &self,
        comm: ncclComm_t,
        buff: *mut ::std::os::raw::c_void,
        size: usize,
        win: *mut ncclWindow_t,
        winFlags: ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclCommWindowRegister
            .as_ref()
            .expect("Expected function, got error."))(comm, buff, size, win, winFlags)
    }
    pub unsafe fn ncclCommWindowDeregister(
        &self,
        comm: ncclComm_t,
        win: ncclWindow_t,
    ) -> ncclResult_t {
        (self
            .ncclCommWindowDeregister
            .as_ref()
            .expect("Expected function, got error."))(comm, win)
    }
    pub unsafe fn ncclWinGetUserPtr(
        &self,
        comm: ncclComm_t,
        win: ncclWindow_t,
        outUserPtr: *mut *mut ::std::os::raw::c_void,
    ) -> ncclResult_t {
        (self
            .ncclWinGetUserPtr
            .as_ref()
            .expect("Expected function, got error."))(comm, win, outUserPtr)
    }
    pub unsafe fn ncclRedOpCreatePreMulSum(
        &self,
        op: *mut ncclRedOp_t,
        scalar: *mut ::std::os::raw::c_void,
        datatype: ncclDataType_t,
        residence: ncclScalarResidence_t,
        comm: ncclComm_t,
    ) -> ncclResult_t {
        (self
            .ncclRedOpCreatePreMulSum
            .as_ref()
            .expect("Expected function, got error."))(op, scalar, datatype, residence, comm)
    }
    pub unsafe fn ncclRedOpDestroy(&self, op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
        (self
            .ncclRedOpDestroy
            .as_ref()
            .expect("Expected function, got error."))(op, comm)
    }
    pub unsafe fn ncclReduce(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclReduce
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, op, root, comm, stream,
        )
    }
    pub unsafe fn ncclBcast(
        &self,
        buff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclBcast
            .as_ref()
            .expect("Expected function, got error."))(
            buff, count, datatype, root, comm, stream
        )
    }
    pub unsafe fn ncclBroadcast(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclBroadcast
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, root, comm, stream,
        )
    }
    pub unsafe fn ncclAllReduce(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclAllReduce
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, op, comm, stream,
        )
    }
    pub unsafe fn ncclReduceScatter(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        recvcount: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclReduceScatter
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, recvcount, datatype, op, comm, stream,
        )
    }
    pub unsafe fn ncclAllGather(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclAllGather
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, sendcount, datatype, comm, stream,
        )
    }
    pub unsafe fn ncclAlltoAll(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclAlltoAll
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, comm, stream,
        )
    }
    pub unsafe fn ncclGather(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclGather
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, root, comm, stream,
        )
    }
    pub unsafe fn ncclScatter(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclScatter
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, root, comm, stream,
        )
    }
    pub unsafe fn ncclAllReduceConfig(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclAllReduceConfig
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, op, comm, stream, config,
        )
    }
    pub unsafe fn ncclBroadcastConfig(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclBroadcastConfig
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, root, comm, stream, config,
        )
    }
    pub unsafe fn ncclReduceConfig(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclReduceConfig
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, op, root, comm, stream, config,
        )
    }
    pub unsafe fn ncclAllGatherConfig(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclAllGatherConfig
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, sendcount, datatype, comm, stream, config,
        )
    }
    pub unsafe fn ncclReduceScatterConfig(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        recvcount: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclReduceScatterConfig
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, recvcount, datatype, op, comm, stream, config,
        )
    }
    pub unsafe fn ncclAlltoAllConfig(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclAlltoAllConfig
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, comm, stream, config,
        )
    }
    pub unsafe fn ncclGatherConfig(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclGatherConfig
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, root, comm, stream, config,
        )
    }
    pub unsafe fn ncclScatterConfig(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        (self
            .ncclScatterConfig
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, recvbuff, count, datatype, root, comm, stream, config,
        )
    }
    pub unsafe fn ncclSend(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclSend
            .as_ref()
            .expect("Expected function, got error."))(
            sendbuff, count, datatype, peer, comm, stream
        )
    }
    pub unsafe fn ncclRecv(
        &self,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclRecv
            .as_ref()
            .expect("Expected function, got error."))(
            recvbuff, count, datatype, peer, comm, stream
        )
    }
    pub unsafe fn ncclPutSignal(
        &self,
        localbuff: *const ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::std::os::raw::c_int,
        peerWin: ncclWindow_t,
        peerWinOffset: usize,
        sigIdx: ::std::os::raw::c_int,
        ctx: ::std::os::raw::c_int,
        flags: ::std::os::raw::c_uint,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclPutSignal
            .as_ref()
            .expect("Expected function, got error."))(
            localbuff,
            count,
            datatype,
            peer,
            peerWin,
            peerWinOffset,
            sigIdx,
            ctx,
            flags,
            comm,
            stream,
        )
    }
    pub unsafe fn ncclSignal(
        &self,
        peer: ::std::os::raw::c_int,
        sigIdx: ::std::os::raw::c_int,
        ctx: ::std::os::raw::c_int,
        flags: ::std::os::raw::c_uint,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclSignal
            .as_ref()
            .expect("Expected function, got error."))(peer, sigIdx, ctx, flags, comm, stream)
    }
    pub unsafe fn ncclWaitSignal(
        &self,
        nDesc: ::std::os::raw::c_int,
        signalDescs: *mut ncclWaitSignalDesc_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        (self
            .ncclWaitSignal
            .as_ref()
            .expect("Expected function, got error."))(nDesc, signalDescs, comm, stream)
    }
    pub unsafe fn ncclGroupStart(&self) -> ncclResult_t {
        (self
            .ncclGroupStart
            .as_ref()
            .expect("Expected function, got error."))()
    }
    pub unsafe fn ncclGroupEnd(&self) -> ncclResult_t {
        (self
            .ncclGroupEnd
            .as_ref()
            .expect("Expected function, got error."))()
    }
    pub unsafe fn ncclGroupSimulateEnd(&self, simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
        (self
            .ncclGroupSimulateEnd
            .as_ref()
            .expect("Expected function, got error."))(simInfo)
    }
    pub unsafe fn ncclSetEncryption(&self, config: *const ncclEncryptionConfig_t) -> ncclResult_t {
        (self
            .ncclSetEncryption
            .as_ref()
            .expect("Expected function, got error."))(config)
    }
    pub unsafe fn ncclParamBind(
        &self,
        out: *mut ncclParamHandle_t,
        key: *const ::std::os::raw::c_char,
    ) -> ncclResult_t {
        (self
            .ncclParamBind
            .as_ref()
            .expect("Expected function, got error."))(out, key)
    }
    pub unsafe fn ncclParamGetI8(&self, h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t {
        (self
            .ncclParamGetI8
            .as_ref()
            .expect("Expected function, got error."))(h, out)
    }
    pub unsafe fn ncclParamGetI16(&self, h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t {
        (self
            .ncclParamGetI16
            .as_ref()
            .expect("Expected function, got error."))(h, out)
    }
    pub unsafe fn ncclParamGetI32(&self, h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t {
        (self
            .ncclParamGetI32
            .as_ref()
            .expect("Expected function, got error."))(h, out)
    }
    pub unsafe fn ncclParamGetI64(&self, h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t {
        (self
            .ncclParamGetI64
            .as_ref()
            .expect("Expected function, got error."))(h, out)
    }
    pub unsafe fn ncclParamGetU8(&self, h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t {
        (self
            .ncclParamGetU8
            .as_ref()
            .expect("Expected function, got error."))(h, out)
    }
    pub unsafe fn ncclParamGetU16(&self, h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t {
        (self
            .ncclParamGetU16
            .as_ref()
            .expect("Expected function, got error."))(h, out)
    }
    pub unsafe fn ncclParamGetU32(&self, h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t {
        (self
            .ncclParamGetU32
            .as_ref()
            .expect("Expected function, got error."))(h, out)
    }
    pub unsafe fn ncclParamGetU64(&self, h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t {
        (self
            .ncclParamGetU64
            .as_ref()
            .expect("Expected function, got error."))(h, out)
    }
    pub unsafe fn ncclParamGetStr(
        &self,
        h: ncclParamHandle_t,
        out: *mut *const ::std::os::raw::c_char,
    ) -> ncclResult_t {
        (self
            .ncclParamGetStr
            .as_ref()
            .expect("Expected function, got error."))(h, out)
    }
    pub unsafe fn ncclParamGet(
        &self,
        h: ncclParamHandle_t,
        out: *mut ::std::os::raw::c_void,
        maxLen: ::std::os::raw::c_int,
        len: *mut ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclParamGet
            .as_ref()
            .expect("Expected function, got error."))(h, out, maxLen, len)
    }
    pub unsafe fn ncclParamGetParameter(
        &self,
        key: *const ::std::os::raw::c_char,
        value: *mut *const ::std::os::raw::c_char,
        valueLen: *mut ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclParamGetParameter
            .as_ref()
            .expect("Expected function, got error."))(key, value, valueLen)
    }
    pub unsafe fn ncclParamGetAllParameterKeys(
        &self,
        table: *mut *mut *const ::std::os::raw::c_char,
        tableLen: *mut ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self
            .ncclParamGetAllParameterKeys
            .as_ref()
            .expect("Expected function, got error."))(table, tableLen)
    }
    pub unsafe fn ncclParamDumpAll(&self) {
        (self
            .ncclParamDumpAll
            .as_ref()
            .expect("Expected function, got error."))()
    }
}
