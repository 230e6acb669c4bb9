//! The lines of `status` about interfaces: their roles, and where XDP is attached.

use std::net::IpAddr;
use std::path::Path;

use lb_common::addr::Ip;
use lb_common::config::Device;

use super::Error;
use super::line::line;
use crate::datapath::{is_accelerated, is_attached};
use crate::maps::Maps;
use crate::state_file::StateFile;
use crate::syscall::device_name;

/// Adds a line for each interface that has programs or should have them. Returns false if an interface lacks them,
/// except for removed pod interfaces.
pub(super) fn lines(text: &mut String, maps: &Maps, links: &Path) -> Result<bool, Error> {
    let mut are_attached = true;
    let mut devices = maps.devices()?;
    // External interfaces come first: a node can have hundreds of pods.
    devices.sort_by_key(|(index, device)| (device.flags & Device::POD, *index));
    for (index, device) in devices {
        let role = role(&device);
        let name = device_name(index);
        let (state, is_fine) = state(&device, is_attached(links, index), name.is_some());
        are_attached &= is_fine;
        let name = name.unwrap_or_else(|| format!("#{index}"));
        let sources: Vec<String> = [device.source4, device.source6]
            .into_iter()
            .filter(|ip| *ip != Ip::UNSPECIFIED)
            .map(|ip| IpAddr::from(ip).to_string())
            .collect();
        let (sources, choice) = (sources.join(" "), choice(&device));
        line(text, "Interface", &format!("{name:<15} {role:<8} {state}  {sources}{choice}"));
    }
    Ok(are_attached)
}

/// Returns the state of an interface's programs, and whether it is as expected: pods come and go while no agent runs.
const fn state(device: &Device, is_attached: bool, exists: bool) -> (&'static str, bool) {
    match (is_attached, exists) {
        (true, _) => ("attached", true),
        (false, true) => ("NOT attached", false),
        (false, false) => ("gone", device.flags & Device::POD != 0),
    }
}

/// Returns the role of an interface, as the agent found it.
const fn role(device: &Device) -> &'static str {
    if device.flags & Device::POD != 0 {
        "pod"
    } else if device.flags & Device::HOST != 0 {
        "host"
    } else {
        "external"
    }
}

/// Returns a note for interfaces with addresses of several networks, which have more sources than the listed ones.
const fn choice(device: &Device) -> &'static str {
    match (device.has_sources(true), device.has_sources(false)) {
        (false, false) => "",
        (true, false) => " (IPv4: or by route, several networks)",
        (false, true) => " (IPv6: or by route, several networks)",
        (true, true) => " (or by route, several networks)",
    }
}

/// Adds the external interfaces that XDP serves before tc, whether XDP redirects to them, and why it does not serve the
/// others.
pub(super) fn acceleration(
    text: &mut String,
    state_file: &StateFile,
    maps: &Maps,
    links: &Path,
) -> Result<(), Error> {
    for (index, device) in maps.devices()? {
        let Some(name) = device_name(index) else { continue };
        let why = state_file.acceleration.get(&name).filter(|why| !why.is_empty());
        if is_accelerated(links, index) {
            let state = match why {
                _ if device.flags & Device::TAKES_FRAMES != 0 => "redirects".to_owned(),
                Some(why) => format!("passes to tc: {why}"),
                None => "passes to tc".to_owned(),
            };
            line(text, "XDP", &format!("{name:<15} attached, {state}"));
        } else if device.flags & (Device::POD | Device::HOST) == 0 {
            let why = why.map_or("not tried yet", String::as_str);
            line(text, "XDP", &format!("{name:<15} not attached: {why}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_does_not_depend_on_local_clients() {
        let role = |flags| role(&Device { flags, ..Device::default() });
        assert_eq!(role(Device::LOCAL_CLIENTS), "external");
        assert_eq!(role(Device::POD), "pod");
        assert_eq!(role(Device::HOST), "host");
    }

    #[test]
    fn an_interface_without_programs_is_a_fault_but_for_a_pod_that_is_gone() {
        let (pod, uplink) = (Device { flags: Device::POD, ..Device::default() }, Device::default());
        for device in [pod, uplink] {
            assert_eq!(state(&device, true, true), ("attached", true));
            // The interface may have no name here, because it belongs to another network namespace.
            assert_eq!(state(&device, true, false), ("attached", true));
            assert_eq!(state(&device, false, true), ("NOT attached", false));
        }
        assert_eq!(state(&pod, false, false), ("gone", true));
        assert_eq!(state(&uplink, false, false), ("gone", false));
    }

    #[test]
    fn line_of_an_interface_names_families_with_source_by_route() {
        let of = |flags| choice(&Device { flags, ..Device::default() });
        assert_eq!(of(Device::LOCAL_CLIENTS | Device::PEER), "");
        assert!(of(Device::SOURCES4).starts_with(" (IPv4: or by route"));
        assert!(of(Device::SOURCES6).starts_with(" (IPv6: or by route"));
        assert!(of(Device::SOURCES4 | Device::SOURCES6).starts_with(" (or by route"));
    }
}
