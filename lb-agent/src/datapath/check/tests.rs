//! Machines that lack something, and the text that names it.

use super::*;

const ENOUGH: u64 = 1 << BPF.0 | 1 << NET_ADMIN.0 | 1 << PERFMON.0;

fn machine(change: impl FnOnce(&mut MachineFacts)) -> String {
    let mut facts = MachineFacts {
        release: "6.6.0".into(),
        has_tcx: None,
        has_btf: true,
        is_jit_off: false,
        is_cgroup2: true,
        is_of_host_time: true,
        version: "#1 SMP PREEMPT_DYNAMIC".into(),
        privileges: Privileges::Held(ENOUGH),
    };
    change(&mut facts);
    let lacks = lacks(&facts, Path::new("/a/cgroup"));
    lacks.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[test]
fn the_cgroup_of_the_host_is_served_where_a_pod_has_both() {
    let own = "cgroup2 /sys/fs/cgroup cgroup2 ro 0 0\n";
    let host = "cgroup2 /host/cgroup/unified cgroup2 rw 0 0\n";
    let old = "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
               cgroup2 /run/other cgroup2 rw 0 0\n";
    let found = |mounts: &str| served_cgroup2(mounts).map(|path| path.display().to_string());
    assert_eq!(found(&[own, host].concat()).as_deref(), Some("/host/cgroup/unified"));
    assert_eq!(found(own).as_deref(), Some("/sys/fs/cgroup"));
    assert_eq!(found(old).as_deref(), Some("/sys/fs/cgroup/unified"), "the first of them");
    assert_eq!(found(""), None);
}

#[test]
fn machine_with_all_requirements_lacks_none() {
    assert_eq!(machine(|_| {}), "");
    let set = |bits: u64| move |facts: &mut MachineFacts| facts.privileges = Privileges::Held(bits);
    assert_eq!(machine(set(1 << SYS_ADMIN | 1 << NET_ADMIN.0)), "");
    assert_eq!(machine(|facts| facts.privileges = Privileges::Unknown), "");
    for release in ["6.6.0-rc1", "6.12.43+deb13-amd64", "7.0", "lts"] {
        assert_eq!(machine(|facts| facts.release = release.into()), "", "{release}");
    }
}

#[test]
fn an_old_kernel_is_named_with_the_oldest_that_was_tried() {
    for release in ["6.5.13-generic", "5.15.0-105", "6.1"] {
        let said = machine(|facts| facts.release = release.into());
        let remedy = "use Linux 6.12 or later (6.6 to 6.11 have tcx links, but were not tried)";
        assert_eq!(said, format!("Linux {release} has no tcx links: {remedy}"));
    }
}

#[test]
fn kernel_that_could_be_asked_for_tcx_links_is_not_judged_by_its_release() {
    let asked = |release: &str, has_tcx| {
        machine(|facts| (facts.release, facts.has_tcx) = (release.into(), Some(has_tcx)))
    };
    assert_eq!(asked("5.14.0-570.el9.x86_64", true), "");
    let said = asked("6.12.0", false);
    assert_eq!(said, "Linux 6.12.0 has no tcx links: use a kernel with CONFIG_NET_CLS_ACT=y");
    assert!(asked("6.1.0", false).contains("use Linux 6.12 or later"));
}

#[test]
fn missing_kernel_feature_or_mount_is_named_with_its_remedy() {
    let version = "#1 SMP PREEMPT_RT Debian 6.12.43-1 (2025-08-27)";
    let said = machine(|facts| facts.version = version.into());
    assert!(said.contains("without CONFIG_PREEMPT_RT"), "{said}");
    let said = machine(|facts| facts.has_btf = false);
    assert!(said.starts_with("/sys/kernel/btf/vmlinux does not exist: "), "{said}");
    assert!(said.contains("CONFIG_DEBUG_INFO_BTF=y"), "{said}");
    let said = machine(|facts| facts.privileges = Privileges::OfUserNamespace);
    assert!(said.contains("hostUsers"), "{said}");
    let said = machine(|facts| facts.is_cgroup2 = false);
    assert!(said.starts_with("/a/cgroup is not a cgroup v2: give its directory"), "{said}");
}

#[test]
fn missing_capabilities_are_listed_and_none_stands_in_for_net_admin() {
    let cases: [(u64, &str); 4] = [
        (0, "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON"),
        (1 << NET_ADMIN.0, "CAP_BPF, CAP_PERFMON"),
        (ENOUGH & !(1 << PERFMON.0), "CAP_PERFMON"),
        (1 << SYS_ADMIN, "CAP_NET_ADMIN"),
    ];
    for (held, missing) in cases {
        let said = machine(|facts| facts.privileges = Privileges::Held(held));
        assert!(said.starts_with(&format!("{missing} missing: run as root")), "{said}");
    }
}

#[test]
fn everything_that_is_missing_is_said_at_once() {
    let said = machine(|facts| {
        *facts = MachineFacts {
            release: "5.4".into(),
            has_tcx: Some(false),
            has_btf: false,
            is_jit_off: true,
            is_cgroup2: false,
            is_of_host_time: true,
            version: "#1 SMP PREEMPT_DYNAMIC".into(),
            privileges: Privileges::Held(0),
        };
    });
    for part in ["Linux 5.4", "btf", "bpf_jit_enable=1", "cgroup v2", "CAP_BPF"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn time_namespace_that_moves_the_clock_is_refused() {
    assert!(!has_offset("monotonic           0         0\nboottime            0         0\n"));
    assert!(has_offset("monotonic       86400         0\nboottime            0         0\n"));
    assert!(!has_offset("monotonic           0         0\nboottime           10         0\n"));
    assert!(!has_offset(""), "before Linux 5.6");
    let said = machine(|facts| facts.is_of_host_time = false);
    assert!(said.contains("timeOffsets"), "{said}");
}
