//! The table of campaigns: their names, the claims that they prove, and the commands that they run.

use anyhow::{Result, bail};

/// A part of a campaign.
pub(super) enum Work {
    /// Test files in their long form.
    Tests(&'static [&'static str]),
    /// A command of xtask with its arguments.
    Command(&'static [&'static str]),
    /// The check of licences, sources and bans of dependencies.
    Deny,
}

/// A campaign: its name, its claim, and the work that proves it.
pub(super) struct Campaign {
    pub(super) name: &'static str,
    pub(super) proves: &'static str,
    /// The expected time, as text.
    pub(super) expected: &'static str,
    pub(super) work: &'static [Work],
}

impl Campaign {
    /// Whether a part of it loads programs or creates namespaces.
    pub(super) fn needs_root(&self) -> bool {
        self.work.iter().any(|work| match work {
            Work::Tests(_) => true,
            Work::Command(arguments) => *arguments != ["mutants"],
            Work::Deny => false,
        })
    }
}

/// All campaigns, in the order in which they run.
pub(super) const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        name: "takeover",
        proves: "10,000 connections and 1,000 UDP sockets survive the take-over from kube-proxy and back, in both modes",
        expected: "7 min",
        work: &[Work::Tests(&["control_plane_takeover"])],
    },
    Campaign {
        name: "outages",
        proves: "an API server that is down, gives unexpected answers or is cut off costs no answer",
        expected: "8 min",
        work: &[Work::Tests(&[
            "control_plane_connections",
            "control_plane_odd_server",
            "control_plane_watch",
            "control_plane_restart",
        ])],
    },
    Campaign {
        name: "settings",
        proves: "every cell of kube-proxy's matrix, every rule beside it and every flow whose endpoint changes is as the \
                 contract says with the default and with each documented setting",
        expected: "15 min",
        work: &[Work::Tests(&[
            "control_plane_matrix",
            "control_plane_contract",
            "control_plane_flows",
            "topology_settings",
        ])],
    },
    Campaign {
        name: "neighbours",
        proves: "neighbouring programs, attached before those of the agent for a minute, cost no answer",
        expected: "3 min",
        work: &[Work::Tests(&["topology_neighbours"])],
    },
    Campaign {
        name: "restart",
        proves: "100,000 requests while the agent is stopped, killed and replaced: none is lost",
        expected: "6 min",
        work: &[Work::Tests(&["topology_restart", "topology_restart_under_load"])],
    },
    Campaign {
        name: "pins",
        proves: "pins that are removed repeatedly for seconds, and then their whole directory, are restored; no answer is lost",
        expected: "1 min",
        work: &[Work::Tests(&["topology_pins_removed"])],
    },
    Campaign {
        name: "flood",
        proves: "floods of unanswered packets, also at a Service in use, 30,000 segments of every kind a second for a minute, and \
                 tables full of expired streams without an agent cost clients no answer",
        expected: "27 min",
        work: &[Work::Tests(&["topology_flood"])],
    },
    Campaign {
        name: "loss",
        proves: "2,000 downloads and 1,000 half-closed ones over a path that loses 2 % of the packets complete, for each shape \
                 of pods",
        expected: "8 min",
        work: &[Work::Tests(&["topology_loss"])],
    },
    Campaign {
        name: "close",
        proves: "2,000 connections that both ends close at once and 1,920 half-closed ones, for each shape of pods: no reset, \
                 no flow that stays",
        expected: "8 min",
        work: &[Work::Tests(&["topology_close"])],
    },
    Campaign {
        name: "own",
        proves: "6,000 connections with random masquerade ports of a CNI, beside 300 NodePorts: none is lost, with the agent as \
                 with kube-proxy",
        expected: "3 min",
        work: &[Work::Tests(&["topology_own_connections", "control_plane_flow_lives"])],
    },
    Campaign {
        name: "probes",
        proves: "health check ports answer every probe beside 1,000 bad clients that reconnect",
        expected: "1 min",
        work: &[Work::Tests(&["topology_probes"])],
    },
    Campaign {
        name: "churn",
        proves: "5,000 changes of endpoints under traffic: every answer is from a backend of the Service",
        expected: "2 min",
        work: &[Work::Tests(&["topology_churn"])],
    },
    Campaign {
        name: "mtu",
        proves: "every path through a router with a small MTU learns it, with datagrams of every size",
        expected: "2 min",
        work: &[Work::Tests(&["topology_mtu"])],
    },
    Campaign {
        name: "pods",
        proves: "500 pods get their programs beside busy threads, 200 lose no more first requests than beside kube-proxy, and none \
                 waits for 5,000 Services that change",
        expected: "5 min",
        work: &[Work::Tests(&[
            "topology_many_pods",
            "topology_new_pods",
            "control_plane_new_pods",
        ])],
    },
    Campaign {
        name: "memory",
        proves: "full tables of the default sizes fit the limit of the manifest: agents that are killed beside them come \
                 back, lists are answered, and the kernel kills no process; a full map refuses the newest Service alone",
        expected: "3 min",
        work: &[Work::Tests(&["topology_memory", "topology_capacity"])],
    },
    Campaign {
        name: "cpus",
        proves: "packets of two CPUs find the old backends or the new ones, and begin a flow once",
        expected: "2 min",
        work: &[Work::Tests(&["two_cpus", "two_cpus_one_flow"])],
    },
    Campaign {
        name: "differential",
        proves: "kernel and host give equal results for every fixture and 100,000 random packets",
        expected: "3 min",
        work: &[Work::Tests(&["prog_run"])],
    },
    Campaign {
        name: "control",
        proves: "8,000 generated requests are answered as by the real kube-apiserver",
        expected: "2 min",
        work: &[Work::Tests(&["compare"])],
    },
    Campaign {
        name: "fuzz",
        proves: "kernel and host give equal results for 100,000 packets of another seed",
        expected: "1 min",
        work: &[Work::Command(&["fuzz-differential", "--packets", "100000", "--seed", "2"])],
    },
    Campaign {
        name: "mutants",
        proves: "a host test detects each small change of the data path",
        expected: "cold 12 min, warm 8 min",
        work: &[Work::Command(&["mutants"])],
    },
    Campaign {
        name: "scale",
        proves: "memory and delays with up to 50,000 Services",
        expected: "cold 14 min, warm 6 min",
        work: &[Work::Command(&["bench", "scale"])],
    },
    Campaign {
        name: "kernels",
        proves: "other kernels accept the programs and serve pods",
        expected: "cold 20 min, warm 15 min",
        work: &[Work::Command(&["kernels"])],
    },
    Campaign {
        name: "image",
        proves: "the image of the release serves as the pod of the DaemonSet",
        expected: "cold 8 min, warm 1 min",
        work: &[Work::Command(&["image"]), Work::Tests(&["control_plane_image"])],
    },
    Campaign {
        name: "deny",
        proves: "licences, sources and bans of dependencies are in order",
        expected: "cold 4 min, warm 2 s",
        work: &[Work::Deny],
    },
];

/// Returns the campaigns with these names, or all if there is no name.
pub(super) fn chosen(names: &[String]) -> Result<Vec<&'static Campaign>> {
    if names.is_empty() {
        return Ok(CAMPAIGNS.iter().collect());
    }
    let named = |name: &String| {
        let found = CAMPAIGNS.iter().find(|campaign| campaign.name == name);
        let Some(found) = found else {
            let known: Vec<&str> = CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
            bail!("no campaign is named {name}\nremedy: choose of {}", known.join(", "));
        };
        Ok(found)
    };
    names.iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::{CAMPAIGNS, Work, chosen};
    use crate::workspace::root;

    /// The test files that campaigns run.
    fn files() -> BTreeSet<&'static str> {
        let work = CAMPAIGNS.iter().flat_map(|campaign| campaign.work);
        let files = work.flat_map(|work| match work {
            Work::Tests(files) => files,
            Work::Command(_) | Work::Deny => &[][..],
        });
        files.copied().collect()
    }

    #[test]
    fn each_file_of_tests_with_two_sizes_is_in_a_campaign() {
        let entries = fs::read_dir(root().join("tests/tests")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let sources = paths.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
        let sized =
            sources.filter(|path| fs::read_to_string(path).unwrap().contains("campaign::size"));
        let sized: Vec<String> =
            sized.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        let files = files();
        let missing: Vec<&String> =
            sized.iter().filter(|name| !files.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "long sizes that nothing runs: {missing:?}");
        assert!(sized.len() > 5, "only {sized:?} have two sizes");
    }

    #[test]
    fn files_of_tests_exist() {
        for name in files() {
            let places = [
                format!("tests/tests/{name}.rs"),
                format!("lb-agent/control/tests/{name}/main.rs"),
            ];
            assert!(places.iter().any(|place| root().join(place).exists()), "no file {name}");
        }
    }

    #[test]
    fn campaigns_are_chosen_by_name() {
        let names: BTreeSet<&str> = CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
        assert_eq!(names.len(), CAMPAIGNS.len(), "a name is used twice");
        assert_eq!(chosen(&[]).unwrap().len(), CAMPAIGNS.len());
        let some = chosen(&["differential".to_owned(), "deny".to_owned()]).unwrap();
        assert!(some.iter().map(|campaign| campaign.name).eq(["differential", "deny"]));
        let unknown = chosen(&["none".to_owned()]).err().unwrap().to_string();
        assert!(unknown.contains("differential"), "{unknown}");
    }
}
