//! The covered addresses, with and without `ServiceCIDR`s, as frontends come and go.

use super::*;
use lb_common::addr::Protocol;

fn entry(ip: &str, flags: Flags) -> (Frontend, Service) {
    let (ip, _) = mapped(&IpNet::from(ip.parse::<IpAddr>().unwrap()));
    let frontend = Frontend::new(ip, Port::new(80), Protocol::TCP);
    (frontend, Service { flags, ..Service::default() })
}

fn filled(ranges: &mut Ranges) -> Settings {
    let mut settings = Settings::default();
    ranges.fill(&mut settings);
    settings
}

fn is_covered(settings: &Settings, ip: &Ip) -> bool {
    settings.cover[usize::from(!ip.is_v4())].covers(ip)
}

#[test]
fn few_prefixes_hold_every_cluster_ip() {
    let mut ranges = Ranges::default();
    let addresses: Vec<String> =
        (0..40).flat_map(|n| [format!("10.{}.0.{n}", n * 6), format!("fd00:{n}::{n}")]).collect();
    for ip in &addresses {
        let (frontend, service) = entry(ip, Flags(0));
        ranges.add(&frontend, &service);
        let settings = filled(&mut ranges);
        assert!(settings.ranges.iter().any(|range| range.contains(&frontend.ip)), "{ip}");
        assert!(is_covered(&settings, &frontend.ip), "{ip}");
    }
    let settings = filled(&mut ranges);
    for ip in &addresses {
        let (frontend, _) = entry(ip, Flags(0));
        assert!(settings.ranges.iter().any(|range| range.contains(&frontend.ip)), "{ip}");
        assert!(is_covered(&settings, &frontend.ip), "{ip}");
    }
    assert!(!settings.ranges.iter().any(|range| range.contains(&Ip::v4([192, 168, 0, 1]))));
    for ip in &addresses {
        let (frontend, service) = entry(ip, Flags(0));
        ranges.remove(&frontend, &service);
    }
    let settings = filled(&mut ranges);
    assert_eq!(settings.ranges, [Prefix::default(); RANGES]);
    assert_eq!(settings.cover, [Prefix::NOTHING; 2]);
}

#[test]
fn cover_is_as_narrow_as_its_ranges_allow() {
    let mut ranges = Ranges::default();
    ranges.set_cidrs(&["10.96.0.0/16".parse().unwrap(), "fd00:96::/112".parse().unwrap()]);
    let settings = filled(&mut ranges);
    assert_eq!(settings.cover, [settings.ranges[0], settings.ranges[1]]);
    ranges.set_cidrs(&["fd00:96::/112".parse().unwrap(), "2001:db8::/108".parse().unwrap()]);
    let settings = filled(&mut ranges);
    assert!(!is_covered(&settings, &Ip::v4([10, 96, 0, 1])));
    for inside in ["fd00:96::1", "2001:db8::1"] {
        let ip: std::net::Ipv6Addr = inside.parse().unwrap();
        assert!(is_covered(&settings, &Ip::v6(ip.octets())), "{inside}");
    }
}

#[test]
fn known_cidrs_stand_with_addresses_beside_them() {
    let mut ranges = Ranges::default();
    ranges.set_cidrs(&["10.96.0.0/16".parse().unwrap()]);
    let (frontend, service) = entry("10.97.0.1", Flags(0));
    ranges.add(&frontend, &service);
    let settings = filled(&mut ranges);
    assert!(settings.has(Settings::RANGES_KNOWN));
    assert!(settings.ranges[0].contains(&Ip::v4([10, 96, 3, 4])));
    assert!(settings.ranges[1].contains(&frontend.ip));
    assert!(!settings.ranges[1].contains(&Ip::v4([10, 97, 0, 2])));
}

#[test]
fn node_port_bounds_and_other_frontends_follow_the_entries() {
    let mut ranges = Ranges::default();
    let none = filled(&mut ranges);
    assert!(none.node_port_high < none.node_port_low);
    let (mut frontend, node_port) = entry("0.0.0.0", Flags::NODE_PORT.with(Flags::EXTERNAL));
    frontend.port = Port::new(30_080);
    ranges.add(&frontend, &node_port);
    let (vip, external) = entry("192.0.2.1", Flags::EXTERNAL);
    ranges.add(&vip, &external);
    let some = filled(&mut ranges);
    assert_eq!((some.node_port_low.get(), some.node_port_high.get()), (30_080, 30_080));
    assert!(some.has(Settings::OTHER_FRONTENDS));
    assert!(some.may_be_other(&vip.ip) && !none.may_be_other(&vip.ip));
    ranges.remove(&frontend, &node_port);
    ranges.remove(&vip, &external);
    assert_eq!(filled(&mut ranges), none);
}
