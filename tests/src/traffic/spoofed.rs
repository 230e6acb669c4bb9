//! Addresses of spoofed packets: no member of a topology has one of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns the `number`-th address, of the family of `own`. Over IPv4 the addresses begin again after 65,536.
pub const fn spoofed(own: SocketAddr, number: u32) -> IpAddr {
    let [.., c, d] = number.to_be_bytes();
    match own {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(198, 18, c, d)),
        SocketAddr::V6(_) => {
            let [high, low] = [(number >> 16) as u16, number as u16];
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0x18, 0, 0, 0, 0, high, low))
        }
    }
}

/// Whether an address is one of these.
pub fn is_spoofed(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets().starts_with(&[198, 18]),
        IpAddr::V6(ip) => ip.segments().starts_with(&[0xfd00, 0x18]),
    }
}
