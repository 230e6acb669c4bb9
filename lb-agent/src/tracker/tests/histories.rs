//! Property: after any history, the returned plans are those that the objects require now.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{cluster, service, slice_of, synced};
use crate::plan::ServiceName;
use crate::snapshot::fixtures::{slice, slice_name};
use crate::snapshot::{Event, ObjectKind};
use crate::tracker::Tracker;
use crate::translate::Translated;

#[derive(Clone, Debug)]
enum Step {
    Apply(u8, bool),
    Delete(u8),
    Slice { slice: u8, service: u8, last: u8 },
    DropSlice(u8),
    Relist(Vec<u8>),
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    let few = 0..4_u8;
    prop_oneof![
        (few.clone(), any::<bool>()).prop_map(|(name, local)| Step::Apply(name, local)),
        few.clone().prop_map(Step::Delete),
        (few.clone(), few.clone(), few.clone()).prop_map(|(slice, service, last)| Step::Slice {
            slice,
            service,
            last
        }),
        few.clone().prop_map(Step::DropSlice),
        prop::collection::vec(few, 0..4).prop_map(Step::Relist),
        Just(Step::Take),
    ]
}

fn name(number: u8) -> ServiceName {
    cluster(&format!("s{number}")).name
}

fn applied(number: u8, local: bool) -> Event {
    let mut spec = cluster(&format!("s{number}"));
    spec.internal_local = local;
    service(spec)
}

fn events(step: &Step) -> Vec<Event> {
    match step {
        Step::Apply(number, local) => vec![applied(*number, *local)],
        Step::Delete(number) => vec![Event::ServiceDeleted(name(*number))],
        Step::Slice { slice: number, service, last } => {
            let endpoint = format!("10.1.0.{last} @here");
            let slice = slice(&format!("x{number}"), &[&endpoint]);
            vec![slice_of(&format!("s{service}"), slice)]
        }
        Step::DropSlice(number) => vec![Event::SliceDeleted(slice_name(&format!("x{number}")))],
        Step::Relist(numbers) => {
            let mut events = vec![Event::ListBegan(ObjectKind::Service)];
            events.extend(numbers.iter().map(|number| applied(*number, false)));
            events.push(Event::Synced(ObjectKind::Service));
            events
        }
        Step::Take => Vec::new(),
    }
}

fn take(tracker: &mut Tracker, programmed: &mut BTreeMap<ServiceName, Translated>) {
    for (name, translated) in tracker.take() {
        drop(match translated {
            Some(translated) => programmed.insert(name, translated),
            None => programmed.remove(&name),
        });
    }
}

proptest! {
    #[test]
    fn incremental_changes_add_up_to_the_final_state(steps in prop::collection::vec(step(), 0..60)) {
        let (mut tracker, mut fresh) = (synced(), synced());
        let mut programmed = BTreeMap::new();
        for step in &steps {
            if matches!(step, Step::Take) {
                take(&mut tracker, &mut programmed);
            }
            for event in events(step) {
                tracker.apply(event.clone());
                fresh.apply(event);
            }
        }
        take(&mut tracker, &mut programmed);
        let mut expected = BTreeMap::new();
        take(&mut fresh, &mut expected);
        prop_assert_eq!(programmed, expected);
        prop_assert_eq!(tracker.take(), Vec::new());
    }
}
