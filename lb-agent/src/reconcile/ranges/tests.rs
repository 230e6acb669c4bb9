//! The covered addresses, with and without `ServiceCIDR`s, as frontends are added and removed.

use super::*;
use lb_common::addr::Protocol;

fn entry(ip: &str, flags: Flags) -> (Frontend, Service) {
    let (ip, _) = mapped(&IpNet::from(ip.parse::<IpAddr>().unwrap()));
    let frontend = Frontend::new(ip, Port::new(80), Protocol::TCP);
    (frontend, Service { flags, ..Service::default() })
}

fn is_covered(derived: &ServiceRanges, ip: &Ip) -> bool {
    derived.may_be_cluster_ip(ip, ip.is_v4())
}

#[test]
fn few_prefixes_hold_every_cluster_ip() {
    let mut ranges = Ranges::default();
    let addresses: Vec<String> =
        (0..40).flat_map(|n| [format!("10.{}.0.{n}", n * 6), format!("fd00:{n}::{n}")]).collect();
    for ip in &addresses {
        let (frontend, service) = entry(ip, Flags(0));
        ranges.add(&frontend, &service);
        let derived = ranges.derive();
        assert!(derived.contain(&frontend.ip), "{ip}");
        assert!(is_covered(&derived, &frontend.ip), "{ip}");
    }
    let derived = ranges.derive();
    for ip in &addresses {
        let (frontend, _) = entry(ip, Flags(0));
        assert!(derived.contain(&frontend.ip), "{ip}");
        assert!(is_covered(&derived, &frontend.ip), "{ip}");
    }
    assert!(!derived.contain(&Ip::v4([192, 168, 0, 1])));
    for ip in &addresses {
        let (frontend, service) = entry(ip, Flags(0));
        ranges.remove(&frontend, &service);
    }
    let derived = ranges.derive();
    assert_eq!(derived, ServiceRanges::default());
}

#[test]
fn cover_is_as_narrow_as_its_ranges_allow() {
    let mut ranges = Ranges::default();
    ranges.set_cidrs(&["10.96.0.0/16".parse().unwrap(), "fd00:96::/112".parse().unwrap()]);
    let derived = ranges.derive();
    assert_eq!(derived.cluster_ip_cover, [derived.ranges[0], derived.ranges[1]]);
    ranges.set_cidrs(&["fd00:96::/112".parse().unwrap(), "2001:db8::/108".parse().unwrap()]);
    let derived = ranges.derive();
    assert!(!is_covered(&derived, &Ip::v4([10, 96, 0, 1])));
    for inside in ["fd00:96::1", "2001:db8::1"] {
        let ip: std::net::Ipv6Addr = inside.parse().unwrap();
        assert!(is_covered(&derived, &Ip::v6(ip.octets())), "{inside}");
    }
}

#[test]
fn known_cidrs_stand_with_addresses_beside_them() {
    let mut ranges = Ranges::default();
    ranges.set_cidrs(&["10.96.0.0/16".parse().unwrap()]);
    let (frontend, service) = entry("10.97.0.1", Flags(0));
    ranges.add(&frontend, &service);
    let derived = ranges.derive();
    assert!(derived.are_known());
    assert!(derived.ranges[0].contains(&Ip::v4([10, 96, 3, 4])));
    assert!(derived.ranges[1].contains(&frontend.ip));
    assert!(!derived.ranges[1].contains(&Ip::v4([10, 97, 0, 2])));
}

#[test]
fn cidrs_are_known_again_once_few_addresses_are_beside_them() {
    let mut ranges = Ranges::default();
    ranges.set_cidrs(&["10.96.0.0/16".parse().unwrap()]);
    let beside: Vec<_> = (1..=RANGES).map(|n| entry(&format!("10.97.0.{n}"), Flags(0))).collect();
    let unused = Ip::v4([10, 96, 3, 4]);
    for (frontend, service) in &beside {
        assert!(ranges.derive().are_known());
        ranges.add(frontend, service);
    }
    let derived = ranges.derive();
    assert!(!derived.are_known() && !derived.contain(&unused));
    let [(frontend, service), (other, _), ..] = &beside[..] else { panic!("two addresses") };
    ranges.remove(frontend, service);
    let derived = ranges.derive();
    assert!(derived.are_known() && derived.contain(&unused));
    assert!(!derived.contain(&frontend.ip) && derived.contain(&other.ip));
}

#[test]
fn node_port_bounds_and_other_frontends_follow_the_entries() {
    let mut ranges = Ranges::default();
    let none = ranges.derive();
    assert!(none.node_port_high < none.node_port_low);
    let (mut frontend, node_port) = entry("0.0.0.0", Flags::NODE_PORT.with(Flags::EXTERNAL));
    frontend.port = Port::new(30_080);
    ranges.add(&frontend, &node_port);
    let (vip, external) = entry("192.0.2.1", Flags::EXTERNAL);
    ranges.add(&vip, &external);
    let some = ranges.derive();
    assert_eq!((some.node_port_low.get(), some.node_port_high.get()), (30_080, 30_080));
    assert!(some.may_be_vip(&vip.ip) && !none.may_be_vip(&vip.ip));
    ranges.remove(&frontend, &node_port);
    ranges.remove(&vip, &external);
    assert_eq!(ranges.derive(), none);
}
