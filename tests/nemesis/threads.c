/* SPDX-License-Identifier: Apache-2.0
 *
 * Galera asks how each of its threads is scheduled and does not start where the
 * system does not say, as in some sandboxes.  Preloaded, every thread is an
 * ordinary one.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

int pthread_getschedparam(pthread_t thread, int *policy, struct sched_param *parameters)
{
    (void)thread;
    *policy = SCHED_OTHER;
    parameters->sched_priority = 0;
    return 0;
}

int pthread_setschedparam(pthread_t thread, int policy, const struct sched_param *parameters)
{
    (void)thread;
    (void)policy;
    (void)parameters;
    return 0;
}
