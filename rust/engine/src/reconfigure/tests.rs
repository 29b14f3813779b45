//! What a reconfigurable communicator is after each thing that can happen; no engine takes part.

use std::sync::Mutex;

use ferrocomm_core::call::{Collective, Task};
use ferrocomm_core::dtype::Dtype;

use super::*;
use crate::testing::Puppet;

/// A presence whose reconfigurations end as the test says.
#[derive(Default)]
struct Stage0 {
    /// the next one is refused with this
    refuse: Mutex<Option<Error>>,
    begun: Mutex<Vec<Arc<Meeting>>>,
    left: Mutex<bool>,
}

struct Meeting {
    request: Request,
    previous: bool,
    work: Arc<Work>,
    group: Arc<Puppet>,
}

impl Meeting {
    fn end(&self, outcome: Result<()>) {
        self.work.run(self.work.complete(outcome));
    }
}

impl Presence for Stage0 {
    fn handle(&self) -> String {
        "handle".into()
    }

    fn reconfigure(
        &self,
        request: Request,
        previous: Option<Arc<dyn Group>>,
    ) -> Result<Arc<dyn Reconfiguration>> {
        if let Some(error) = self.refuse.lock().unwrap().take() {
            return Err(error);
        }
        let meeting = Arc::new(Meeting {
            request,
            previous: previous.is_some(),
            work: Arc::new(Work::new(Operation::Reconfigure, 0)),
            group: Puppet::new(),
        });
        self.begun.lock().unwrap().push(meeting.clone());
        Ok(meeting)
    }

    fn leave(&self) {
        *self.left.lock().unwrap() = true;
    }
}

impl Reconfiguration for Meeting {
    fn work(&self) -> &Arc<Work> {
        &self.work
    }

    fn group(&self) -> Result<Arc<dyn Group>> {
        Ok(self.group.clone())
    }

    fn wait(&self, work: &Arc<Work>, _: Option<Duration>) -> Result<()> {
        work.outcome().expect("the test has ended it")
    }

    fn abort(&self) {
        self.end(Err(Error::new(ErrorKind::Aborted, "aborted by the test")));
    }
}

struct Scene {
    presence: Arc<Stage0>,
    communicator: Arc<Reconfigurable>,
}

impl Scene {
    fn new() -> Self {
        let presence = Arc::<Stage0>::default();
        let options = CommunicatorOptions {
            backend: crate::Backend::Host,
            name: "elastic".into(),
            rank: 3,
            size: 4,
            timeout: Some(Duration::from_secs(7)),
            device: 0,
            hints: vec![("a".into(), "1".into()), ("b".into(), "1".into())],
        };
        let place = Place::of(&options).unwrap();
        let communicator = Reconfigurable::of_presence(place, presence.clone(), options.hints);
        Self {
            presence,
            communicator,
        }
    }

    fn begin(&self, uuid: i64) -> Result<(Pending, Arc<Meeting>)> {
        let pending = self.communicator.reconfigure(ReconfigureOptions {
            uuid,
            handles: Handles::Ordered(vec!["handle".into()]),
            timeout: None,
            hints: vec![("b".into(), "2".into())],
        })?;
        let meeting = self.presence.begun.lock().unwrap().last().cloned();
        Ok((pending, meeting.unwrap()))
    }

    fn configured() -> Self {
        let scene = Self::new();
        let (pending, meeting) = scene.begin(1).unwrap();
        meeting.end(Ok(()));
        pending.wait(None).unwrap();
        scene
    }

    fn state(&self) -> String {
        let state = self.communicator.current().state_name();
        state.to_string_lossy().into_owned()
    }
}

fn barrier(communicator: &Arc<Communicator>) -> Result<Pending> {
    communicator.start(Task::Collective(Collective::Barrier), Dtype::Byte, None)
}

fn lost() -> Error {
    Error::new(ErrorKind::PeerLost, "somebody is gone")
}

#[test]
fn without_members_nothing_can_be_issued() {
    let scene = Scene::new();
    assert_eq!(scene.state(), "unconfigured");
    let current = scene.communicator.current();
    assert_eq!((current.rank().get(), current.size()), (3, 4));
    let error = barrier(&current).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::State);
    assert!(error.to_string().contains("call reconfigure"), "{error}");
    assert_eq!(scene.communicator.handle().unwrap(), "handle");
}

#[test]
fn members_that_have_met_are_the_communicator() {
    let scene = Scene::new();
    let (pending, meeting) = scene.begin(1).unwrap();
    assert!(!meeting.previous);
    assert_eq!(meeting.request.timeout, Duration::from_secs(7));
    assert_eq!(scene.state(), "unconfigured");
    assert!(pending.outcome().is_none());
    scene
        .communicator
        .current()
        .set_timeout(Duration::from_secs(9))
        .unwrap();
    meeting.end(Ok(()));
    pending.wait(None).unwrap();
    assert_eq!(scene.state(), "ready");
    let current = scene.communicator.current();
    assert_eq!((current.rank().get(), current.size()), (0, 2));
    assert_eq!(current.timeout(), Duration::from_secs(9), "it survives");
    drop(barrier(&current).unwrap());
    assert_eq!(meeting.group.script().issued.len(), 1);
}

#[test]
fn what_was_made_before_ends_and_cannot_touch_what_comes_after() {
    let scene = Scene::configured();
    let old = scene.communicator.current();
    let before = scene.presence.begun.lock().unwrap()[0].clone();
    let (pending, meeting) = scene.begin(2).unwrap();
    assert!(meeting.previous, "the engine ends the old group");
    meeting.end(Ok(()));
    pending.wait(None).unwrap();
    let error = barrier(&old).err().unwrap();
    assert!(error.to_string().contains("was reconfigured"), "{error}");
    before.group.script().failure = Some(lost());
    assert!(scene.communicator.current().failure().is_none());
    assert_eq!(scene.state(), "ready");
}

#[test]
fn a_used_uuid_and_a_refusal_change_nothing() {
    let scene = Scene::configured();
    let error = scene.begin(1).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    *scene.presence.refuse.lock().unwrap() = Some(invalid("its own handle is missing"));
    assert!(scene.begin(2).is_err());
    assert_eq!(scene.state(), "ready");
    drop(barrier(&scene.communicator.current()).unwrap());
    // It was not used up.
    assert!(scene.begin(2).is_ok());
}

#[test]
fn a_failed_reconfiguration_leaves_a_cause_and_another_may_follow() {
    let scene = Scene::configured();
    let (pending, meeting) = scene.begin(2).unwrap();
    meeting.end(Err(lost()));
    assert_eq!(pending.wait(None).unwrap_err().kind(), ErrorKind::PeerLost);
    assert_eq!(scene.state(), "failed");
    let error = barrier(&scene.communicator.current()).err().unwrap();
    assert_eq!(error.what(), "somebody is gone");
    assert_eq!(
        scene.begin(2).err().unwrap().kind(),
        ErrorKind::InvalidArgument
    );
    let (pending, meeting) = scene.begin(3).unwrap();
    assert!(!meeting.previous, "there is no group any more");
    meeting.end(Ok(()));
    pending.wait(None).unwrap();
    assert_eq!(scene.state(), "ready");
}

#[test]
fn without_members_a_failure_leaves_it_without_members() {
    let scene = Scene::new();
    let (pending, meeting) = scene.begin(1).unwrap();
    meeting.end(Err(lost()));
    assert!(pending.wait(None).is_err());
    assert_eq!(scene.state(), "unconfigured");
}

#[test]
fn only_one_reconfiguration_is_on_its_way() {
    let scene = Scene::configured();
    let (_pending, meeting) = scene.begin(2).unwrap();
    assert_eq!(scene.begin(3).err().unwrap().kind(), ErrorKind::State);
    let error = scene.communicator.finalize().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    assert!(barrier(&scene.communicator.current()).is_err());
    meeting.end(Ok(()));
    assert!(scene.begin(3).is_ok());
}

#[test]
fn abort_ends_what_is_on_its_way_and_the_communicator_may_be_reconfigured() {
    let scene = Scene::configured();
    let (pending, _) = scene.begin(2).unwrap();
    scene.communicator.abort();
    assert_eq!(pending.wait(None).unwrap_err().kind(), ErrorKind::Aborted);
    assert_eq!(scene.state(), "aborted");
    let (pending, meeting) = scene.begin(3).unwrap();
    meeting.end(Ok(()));
    pending.wait(None).unwrap();
    scene.communicator.abort();
    assert_eq!(scene.state(), "aborted");
    assert_eq!(meeting.group.script().aborts, 1);
    let (pending, meeting) = scene.begin(4).unwrap();
    assert!(meeting.previous);
    meeting.end(Ok(()));
    pending.wait(None).unwrap();
    assert_eq!(scene.state(), "ready");
}

#[test]
fn hints_stay_and_newer_ones_count() {
    let scene = Scene::configured();
    let hints = scene.presence.begun.lock().unwrap()[0]
        .request
        .hints
        .clone();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(hints, [pair("a", "1"), pair("b", "2")]);
    let (_, meeting) = scene.begin(2).unwrap();
    assert_eq!(meeting.request.hints, [pair("a", "1"), pair("b", "2")]);
}

#[test]
fn finalize_is_the_end() {
    for scene in [Scene::new(), Scene::configured()] {
        scene.communicator.finalize().unwrap();
        scene.communicator.finalize().unwrap();
        assert_eq!(scene.state(), "finalized");
        assert!(*scene.presence.left.lock().unwrap());
        assert_eq!(scene.begin(9).err().unwrap().kind(), ErrorKind::State);
        assert!(scene.communicator.handle().is_err());
    }
}
