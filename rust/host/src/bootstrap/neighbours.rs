//! What the launcher says of the ranks on this machine. It is a hint: that ranks are on one machine
//! is proved by their meeting there. Must not know how they meet.

use std::env;

use ferrocomm_core::ids::{GroupRank, stable_hash};

use super::machine::Meeting;

/// Where a launcher says who a process is.
struct Launcher {
    rank: &'static str,
    size: &'static str,
    /// number of ranks on this machine
    local_size: &'static str,
    /// number of this rank among them
    local_rank: &'static str,
}

/// The launchers known, of which the first that knows this rank counts.
const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        rank: "RANK",
        size: "WORLD_SIZE",
        local_size: "LOCAL_WORLD_SIZE",
        local_rank: "LOCAL_RANK",
    },
    Launcher {
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    },
    Launcher {
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_size: "MPI_LOCALNRANKS",
        local_rank: "MPI_LOCALRANKID",
    },
    Launcher {
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_size: "SLURM_STEP_TASKS_PER_NODE",
        local_rank: "SLURM_LOCALID",
    },
];

/// The ranks that are likely on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Neighbours {
    /// how many there are, this one among them; at least 2, and as many on every machine
    local: u32,
    /// what tells this job from the others of this machine
    job: String,
}

/// What two processes must have in common to meet.
pub(super) struct Circle<'a> {
    /// name of the communicator
    pub(super) name: &'a str,
    pub(super) rank: u32,
    pub(super) size: usize,
    /// how many communicators of this name came before
    pub(super) generation: u64,
    /// as `address::machine_id` names it
    pub(super) machine: u64,
}

impl Neighbours {
    /// What the launcher says of the neighbours of `rank` among `size` ranks; nothing when it started
    /// other ranks than these, or places them in another way than one machine after the other.
    pub(crate) fn of_launcher(rank: GroupRank, size: usize) -> Option<Self> {
        Self::from(&|name| env::var(name).ok(), rank.get(), size)
    }

    fn from(variable: &dyn Fn(&str) -> Option<String>, rank: u32, size: usize) -> Option<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let number = |name: &str| set(name)?.parse::<u32>().ok();
        let size = u32::try_from(size).ok()?;
        let launcher = LAUNCHERS.iter().find(|launcher| {
            number(launcher.rank) == Some(rank)
                && number(launcher.size) == Some(size)
                && set(launcher.local_size).is_some()
        })?;
        let local = per_machine(&set(launcher.local_size)?)?;
        let fits = local >= 2 && size % local == 0;
        if !fits || number(launcher.local_rank).is_some_and(|number| number != rank % local) {
            return None;
        }
        // Whoever plays several machines on one has told the launcher nothing of it.
        if set("FERROCOMM_HOST_ID").is_some() && local == size {
            return None;
        }
        // SAFETY: takes no argument and cannot fail.
        let user = unsafe { libc::geteuid() };
        let run = set("TORCHELASTIC_RUN_ID").unwrap_or_default();
        let restart = set("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
        let (address, port) = (set("MASTER_ADDR")?, set("MASTER_PORT")?);
        let job = format!("{user} {address} {port} {restart} {run}");
        Some(Self { local, job })
    }

    /// `local` neighbours in a job called `job`.
    #[cfg(test)]
    pub(super) fn new(local: u32, job: &str) -> Self {
        Self {
            local,
            job: job.into(),
        }
    }

    /// Where the ranks of `circle` meet.
    pub(super) fn meeting(&self, circle: &Circle<'_>) -> Option<Meeting> {
        let node = circle.rank / self.local;
        let half = |which: &[u8]| {
            stable_hash(&[
                which,
                self.job.as_bytes(),
                circle.name.as_bytes(),
                &circle.generation.to_le_bytes(),
                &circle.size.to_le_bytes(),
                &circle.machine.to_le_bytes(),
                &node.to_le_bytes(),
            ])
        };
        let name = u128::from(half(b"upper")) << 64 | u128::from(half(b"lower"));
        let fits = self.local >= 2 && circle.size.is_multiple_of(self.local as usize);
        fits.then_some(Meeting {
            local: self.local,
            name: name.to_be_bytes(),
        })
    }
}

/// Ranks per machine: a number, which SLURM writes as `8(x4)` for four machines.
fn per_machine(text: &str) -> Option<u32> {
    let number = match text.split_once("(x") {
        Some((number, machines)) if machines.trim_end_matches(')').parse::<u32>().is_ok() => number,
        Some(_) => return None,
        None => text,
    };
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASTER: [(&str, &str); 2] = [("MASTER_ADDR", "head"), ("MASTER_PORT", "29500")];

    fn local(variables: &[(&str, &str)], rank: u32, size: usize) -> Option<u32> {
        let look = |name: &str| {
            let mut all = variables.iter().chain(&MASTER);
            let (_, value) = all.find(|(key, _)| *key == name)?;
            Some((*value).to_owned())
        };
        Neighbours::from(&look, rank, size).map(|neighbours| neighbours.local)
    }

    fn torchrun<'a>(rank: &'a str, local_rank: &'a str, local: &'a str) -> [(&'a str, &'a str); 4] {
        [
            ("RANK", rank),
            ("WORLD_SIZE", "8"),
            ("LOCAL_WORLD_SIZE", local),
            ("LOCAL_RANK", local_rank),
        ]
    }

    #[test]
    fn launchers_are_understood() {
        assert_eq!(local(&torchrun("5", "1", "4"), 5, 8), Some(4));
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        assert_eq!(local(&open_mpi, 3, 4), Some(2));
        let mpich = [
            ("PMI_RANK", "3"),
            ("PMI_SIZE", "4"),
            ("MPI_LOCALNRANKS", "4"),
            ("MPI_LOCALRANKID", "3"),
        ];
        assert_eq!(local(&mpich, 3, 4), Some(4));
        for (text, expected) in [
            ("8(x4)", Some(8)),
            ("8", Some(8)),
            ("8(x2),4(x4)", None),
            ("8,4", None),
        ] {
            let slurm = [
                ("SLURM_PROCID", "9"),
                ("SLURM_NTASKS", "32"),
                ("SLURM_STEP_TASKS_PER_NODE", text),
                ("SLURM_LOCALID", "1"),
            ];
            assert_eq!(local(&slurm, 9, 32), expected, "{text}");
        }
    }

    #[test]
    fn hints_that_cannot_be_true_of_this_group_are_none() {
        // A group of other ranks than the launcher's.
        assert_eq!(local(&torchrun("5", "1", "4"), 1, 4), None);
        assert_eq!(local(&torchrun("5", "1", "4"), 1, 8), None);
        // Machines of different sizes; ranks dealt out in turn; one rank per machine.
        assert_eq!(local(&torchrun("5", "2", "3"), 5, 8), None);
        assert_eq!(local(&torchrun("5", "2", "4"), 5, 8), None);
        assert_eq!(local(&torchrun("5", "0", "1"), 5, 8), None);
        for words in ["", "0", "-4", "many", "4294967296"] {
            assert_eq!(local(&torchrun("5", "1", words), 5, 8), None, "{words}");
        }
        // Several machines are played on one, and the launcher does not know.
        let host = ("FERROCOMM_HOST_ID", "a");
        let played = |local| [&torchrun("1", "1", local)[..], &[host]].concat();
        assert_eq!(local(&played("8"), 1, 8), None);
        assert_eq!(local(&played("4"), 1, 8), Some(4));
    }

    #[test]
    fn a_job_without_a_master_has_no_name() {
        let without = |missing: &'static str| {
            Neighbours::from(
                &move |name| {
                    let variables = torchrun("5", "1", "4");
                    let mut all = variables.iter().chain(&MASTER);
                    let (_, value) = all.find(|(key, _)| *key == name && name != missing)?;
                    Some((*value).to_owned())
                },
                5,
                8,
            )
        };
        assert_eq!(without("MASTER_ADDR"), None);
        assert_eq!(without("MASTER_PORT"), None);
        assert!(without("nothing").is_some());
    }

    #[test]
    fn whatever_differs_keeps_ranks_apart() {
        let job = Neighbours::new(4, "job");
        let circle = || Circle {
            name: "world",
            rank: 1,
            size: 8,
            generation: 0,
            machine: 7,
        };
        let here = job.meeting(&circle());
        let same = Circle {
            rank: 3,
            ..circle()
        };
        assert!(here.is_some());
        assert_eq!(job.meeting(&same), here);
        let others = [
            Circle {
                rank: 4,
                ..circle()
            },
            Circle {
                name: "w",
                ..circle()
            },
            Circle {
                size: 16,
                ..circle()
            },
            Circle {
                generation: 1,
                ..circle()
            },
            Circle {
                machine: 8,
                ..circle()
            },
        ];
        for other in &others {
            assert_ne!(job.meeting(other), here);
        }
        assert_ne!(Neighbours::new(4, "other").meeting(&circle()), here);
        assert_eq!(Neighbours::new(3, "job").meeting(&circle()), None);
    }
}
