//! The names of socket hooks as the kernel and its library call them.

use aya::programs::CgroupSockAddrAttachType;

/// The kernel's name of a socket hook.
pub(super) fn hook(name: &str) -> CgroupSockAddrAttachType {
    match name {
        "connect4" => CgroupSockAddrAttachType::Connect4,
        "connect6" => CgroupSockAddrAttachType::Connect6,
        "sendmsg4" => CgroupSockAddrAttachType::UDPSendMsg4,
        "sendmsg6" => CgroupSockAddrAttachType::UDPSendMsg6,
        "recvmsg4" => CgroupSockAddrAttachType::UDPRecvMsg4,
        "recvmsg6" => CgroupSockAddrAttachType::UDPRecvMsg6,
        "peername4" => CgroupSockAddrAttachType::GetPeerName4,
        _ => CgroupSockAddrAttachType::GetPeerName6,
    }
}

/// A socket hook as bpf(2) numbers it.
pub(in crate::datapath) fn attach_type(name: &str) -> u32 {
    match name {
        "connect4" => 10,
        "connect6" => 11,
        "sendmsg4" => 14,
        "sendmsg6" => 15,
        "recvmsg4" => 19,
        "recvmsg6" => 20,
        "peername4" => 29,
        _ => 30,
    }
}
