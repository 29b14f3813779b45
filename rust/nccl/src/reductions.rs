//! Which element types and reduce ops NCCL has, and how the others map to them. Pure. Must not know
//! streams or communicators.

use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::{Error, ErrorKind, Result};
use ferrocomm_nccl_sys::sys::{ncclDataType_t, ncclRedOp_t};

/// An element as NCCL sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wire {
    pub(crate) dtype: ncclDataType_t,
    /// bytes of one
    pub(crate) size: usize,
}

impl Wire {
    const fn new(dtype: ncclDataType_t, size: usize) -> Self {
        Self { dtype, size }
    }

    /// One byte, for what is only moved.
    pub(crate) const BYTE: Self = Self::new(ncclDataType_t::ncclUint8, 1);

    /// How `dtype` travels: as itself where NCCL has it, else as bytes.
    pub(crate) fn to_move(dtype: Dtype) -> Self {
        to_combine(dtype)
            .filter(|wire| wire.size == dtype.size())
            .unwrap_or(Self::BYTE)
    }
}

/// What NCCL combines elements of `dtype` as. A complex number is two real ones.
fn to_combine(dtype: Dtype) -> Option<Wire> {
    Some(match dtype {
        Dtype::Uint8 | Dtype::Bool => Wire::new(ncclDataType_t::ncclUint8, 1),
        Dtype::Int8 => Wire::new(ncclDataType_t::ncclInt8, 1),
        Dtype::Uint32 => Wire::new(ncclDataType_t::ncclUint32, 4),
        Dtype::Int32 => Wire::new(ncclDataType_t::ncclInt32, 4),
        Dtype::Uint64 => Wire::new(ncclDataType_t::ncclUint64, 8),
        Dtype::Int64 => Wire::new(ncclDataType_t::ncclInt64, 8),
        Dtype::Float16 | Dtype::Complex32 => Wire::new(ncclDataType_t::ncclFloat16, 2),
        Dtype::Bfloat16 => Wire::new(ncclDataType_t::ncclBfloat16, 2),
        Dtype::Float32 | Dtype::Complex64 => Wire::new(ncclDataType_t::ncclFloat32, 4),
        Dtype::Float64 | Dtype::Complex128 => Wire::new(ncclDataType_t::ncclFloat64, 8),
        Dtype::Float8E4m3fn => Wire::new(ncclDataType_t::ncclFloat8e4m3, 1),
        Dtype::Float8E5m2 => Wire::new(ncclDataType_t::ncclFloat8e5m2, 1),
        Dtype::Byte
        | Dtype::Uint16
        | Dtype::Int16
        | Dtype::Float8E4m3fnuz
        | Dtype::Float8E5m2fnuz
        | Dtype::Float8E8m0fnu => return None,
    })
}

/// A reduce op as NCCL is told it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Combine {
    /// one that NCCL has
    Plain(ncclRedOp_t),
    /// SUM of the inputs times this, made for the call
    Premul(f64),
    /// the same with one element at this address of the device, read when the operation runs
    PremulAt(usize),
}

/// How NCCL combines elements of `dtype` with `op`.
///
/// # Errors
/// `Unsupported`, with the reason.
pub(crate) fn combine(op: ReduceOp, dtype: Dtype) -> Result<(Combine, Wire)> {
    let wire = to_combine(dtype)
        .ok_or_else(|| refused(op, dtype, "nccl has no arithmetic for this dtype"))?;
    let complex = matches!(
        dtype,
        Dtype::Complex32 | Dtype::Complex64 | Dtype::Complex128
    );
    let real = matches!(
        dtype,
        Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32 | Dtype::Float64
    );
    let plain = |op| Ok((Combine::Plain(op), wire));
    match op {
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => {
            Err(refused(op, dtype, "nccl has no bitwise reduction"))
        }
        // Zero or one: the larger is the or, the smaller the and.
        ReduceOp::Sum if dtype == Dtype::Bool => plain(ncclRedOp_t::ncclMax),
        ReduceOp::Product if dtype == Dtype::Bool => plain(ncclRedOp_t::ncclMin),
        ReduceOp::Average if dtype == Dtype::Bool => {
            Err(refused(op, dtype, "truth values have no average"))
        }
        ReduceOp::Product | ReduceOp::Min | ReduceOp::Max if complex => {
            Err(refused(op, dtype, "complex numbers can only be added here"))
        }
        ReduceOp::Sum => plain(ncclRedOp_t::ncclSum),
        ReduceOp::Average => plain(ncclRedOp_t::ncclAvg),
        ReduceOp::Product => plain(ncclRedOp_t::ncclProd),
        ReduceOp::Min => plain(ncclRedOp_t::ncclMin),
        ReduceOp::Max => plain(ncclRedOp_t::ncclMax),
        ReduceOp::PremulSum(factor) if real || complex => Ok((Combine::Premul(factor), wire)),
        ReduceOp::PremulSumAt(address) if real || complex => Ok((Combine::PremulAt(address), wire)),
        ReduceOp::PremulSum(_) | ReduceOp::PremulSumAt(_) => {
            Err(refused(op, dtype, "a factor is for floating point alone"))
        }
    }
}

/// Whether the engine can combine elements of `dtype` with `op`.
///
/// # Errors
/// `Unsupported`, with the reason.
pub fn reduction_supported(op: ReduceOp, dtype: Dtype) -> Result<()> {
    combine(op, dtype).map(drop)
}

fn refused(op: ReduceOp, dtype: Dtype, why: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, why).got(format!("{op} of {dtype}"))
}

/// `factor` as one element of `wire`, in the first bytes.
///
/// # Errors
/// `Unsupported`, when the element is no floating-point number.
pub(crate) fn scalar(factor: f64, wire: Wire) -> Result<[u8; 8]> {
    let mut bytes = [0; 8];
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the factor is rounded to the element's type, as the elements were"
    )]
    let narrow = factor as f32;
    match wire.dtype {
        ncclDataType_t::ncclFloat64 => bytes = factor.to_ne_bytes(),
        ncclDataType_t::ncclFloat32 => bytes[..4].copy_from_slice(&narrow.to_ne_bytes()),
        ncclDataType_t::ncclFloat16 => {
            bytes[..2].copy_from_slice(&half::f16::from_f64(factor).to_ne_bytes());
        }
        ncclDataType_t::ncclBfloat16 => {
            bytes[..2].copy_from_slice(&half::bf16::from_f64(factor).to_ne_bytes());
        }
        other => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a factor is for floating point alone",
            )
            .got(format!("NCCL's type {}", other.0)));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_values_travel_as_bytes_and_their_sum_is_or() {
        let (op, wire) = combine(ReduceOp::Sum, Dtype::Bool).expect("supported");
        assert_eq!(op, Combine::Plain(ncclRedOp_t::ncclMax));
        assert_eq!(wire, Wire::BYTE);
        assert!(reduction_supported(ReduceOp::Average, Dtype::Bool).is_err());
    }

    #[test]
    fn bitwise_ops_and_short_integers_are_refused_by_name() {
        for (op, dtype, words) in [
            (ReduceOp::BitAnd, Dtype::Int32, "BAND of int32"),
            (ReduceOp::BitXor, Dtype::Float32, "BXOR of float32"),
            (ReduceOp::Sum, Dtype::Int16, "SUM of int16"),
            (ReduceOp::Max, Dtype::Complex64, "MAX of complex64"),
            (
                ReduceOp::PremulSum(2.0),
                Dtype::Int64,
                "PREMUL_SUM of int64",
            ),
            (ReduceOp::PremulSumAt(64), Dtype::Bool, "PREMUL_SUM of bool"),
        ] {
            let error = reduction_supported(op, dtype).expect_err(words);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn every_dtype_can_be_moved_in_whole_elements() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.size() % Wire::to_move(dtype).size, 0, "{dtype}");
        }
        assert_eq!(Wire::to_move(Dtype::Int16), Wire::BYTE);
        assert_eq!(Wire::to_move(Dtype::Float32).size, 4);
    }

    #[test]
    fn a_factor_is_rounded_to_the_elements_type() {
        let of = |dtype| scalar(1.5, to_combine(dtype).expect("a type of nccl")).expect("a float");
        assert_eq!(of(Dtype::Float64), 1.5f64.to_ne_bytes());
        assert_eq!(of(Dtype::Float32)[..4], 1.5f32.to_ne_bytes());
        assert_eq!(of(Dtype::Bfloat16)[..2], 0x3fc0u16.to_ne_bytes());
        assert_eq!(of(Dtype::Float16)[..2], 0x3e00u16.to_ne_bytes());
    }
}
